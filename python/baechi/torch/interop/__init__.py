# SPDX-License-Identifier: Apache-2.0
"""Plans for other programs, and programs of theirs as graphs."""
