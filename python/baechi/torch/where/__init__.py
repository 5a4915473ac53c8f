# SPDX-License-Identifier: Apache-2.0
"""Where a model runs: its weights on their devices, and what its modules read brought there.

This is PyTorch's own meaning of a model on several devices: forward pre-hooks and one function
mode move tensors, and nothing else does. Programs (`baechi.torch.run`) run the same model sooner.
"""

from baechi.torch.where.homes import Homes
from baechi.torch.where.hooks import Installed, install

__all__ = ["Homes", "Installed", "install"]
