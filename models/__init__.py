# SPDX-License-Identifier: Apache-2.0
"""Models that the tests place and the experiments measure, one folder per framework."""
