# SPDX-License-Identifier: Apache-2.0
"""A placement over the processes of torch.distributed: each runs its part of one program."""
