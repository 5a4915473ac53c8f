# SPDX-License-Identifier: Apache-2.0
"""From a step and its costs to the ML graph that is placed."""
