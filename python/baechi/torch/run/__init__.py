# SPDX-License-Identifier: Apache-2.0
"""Runs a placed model: eagerly, or as a graph; tensors travel between its devices."""
