# SPDX-License-Identifier: Apache-2.0
"""Runs PyTorch models across devices. Needs the extra ``baechi[torch]``."""
