# SPDX-License-Identifier: Apache-2.0
"""What recorded operators cost, and the graph that is placed."""
