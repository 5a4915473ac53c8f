# SPDX-License-Identifier: Apache-2.0
"""What stands in the place of a module's `forward` while the module is seen."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any

from torch import nn

from baechi._core import InputError


class WrappedForward(functools.partial[Any]):
    """A module's forward while it is seen; a copy of it would run the module it was made for."""

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Refuse to be copied or pickled with the module."""
        raise InputError(
            "a placed model cannot be copied or pickled (AveragedModel copies what it is given): "
            "build another model of its class and load placed.state_dict() into it, over ranks on "
            "every rank; in one process restore() first does, too"
        )

    @property
    def __globals__(self) -> Any:
        """Refuse to be scripted: torch.jit.script looks here first."""
        raise AttributeError("torch.jit.script cannot take a placed model: restore() it first")


def of_own_thread(module: nn.Module, forward: Any, running: threading.RLock) -> Callable[..., Any]:
    """Return a forward for this thread; others wait for `running`, then call the module again."""
    thread = threading.get_ident()

    @functools.wraps(forward)
    def run_or_wait(*args: Any, **kwargs: Any) -> Any:
        if threading.get_ident() == thread:
            return forward(*args, **kwargs)
        with running:
            pass
        return module.forward(*args, **kwargs)

    return run_or_wait
