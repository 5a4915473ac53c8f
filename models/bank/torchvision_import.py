# SPDX-License-Identifier: Apache-2.0
"""Imports torchvision where its kernels cannot be loaded: nothing here calls them.

The usual build beside a CPU build of PyTorch finds no CUDA, and ends with an error about operators
that it describes without having defined them.
"""

from __future__ import annotations

import importlib
import importlib.util
from typing import Any

import torch

_DEFINED: list[Any] = []  # operators last as long as the library that defined them


def with_torchvision() -> None:
    """Make `import torchvision` work for timm, and for others who find that it is there."""
    if importlib.util.find_spec("torchvision") is None:
        return
    try:
        importlib.import_module("torchvision")
    except RuntimeError:
        library = torch.library.Library("torchvision", "FRAGMENT")
        for name in ("nms", "qnms"):
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        _DEFINED.append(library)
        importlib.import_module("torchvision")
