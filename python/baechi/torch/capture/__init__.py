# SPDX-License-Identifier: Apache-2.0
"""A training step of a model as one functional graph, made with shapes only."""
