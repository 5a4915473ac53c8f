# SPDX-License-Identifier: Apache-2.0
"""A model as one graph of aten calls, and where and in which order these run."""
