# SPDX-License-Identifier: Apache-2.0
"""The versions of PyTorch that the tests run on, and what is said of others on import."""

from __future__ import annotations

import warnings

import torch

OLDEST = "2.14.0"  # tools/requirements-torch-oldest.txt
NEWEST = "2.14.1"  # tools/requirements-torch.txt


def _minor(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")[:2])


def check(version: str) -> None:
    """Warn of a PyTorch newer than the newest tested; later patches of that one are as good.

    Raises:
        ImportError: It is older than the oldest.

    """
    if _minor(version) < _minor(OLDEST):
        raise ImportError(
            f"PyTorch {version} is older than {OLDEST}, the oldest that baechi.torch runs on: "
            f"python -m pip install 'torch>={OLDEST}'"
        )
    if _minor(version) > _minor(NEWEST):
        warnings.warn(
            f"baechi.torch was tested with PyTorch {OLDEST} to {NEWEST}, not with {version}: "
            "compare what it computes, or install a tested one",
            stacklevel=4,  # check, this module, baechi.torch, who imports it
        )


check(torch.__version__)
