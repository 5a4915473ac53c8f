# SPDX-License-Identifier: Apache-2.0
"""A step of a model, recorded while it runs eagerly."""
