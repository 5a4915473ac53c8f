# SPDX-License-Identifier: Apache-2.0
"""The peak memory of each device, in both tiers, and plans that keep to it."""
