# SPDX-License-Identifier: Apache-2.0
"""What calls cost, by their signature: estimated, measured, or read from a profile."""
