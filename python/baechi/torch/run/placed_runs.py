# SPDX-License-Identifier: Apache-2.0
"""Second runs of operators of a placed model: where the first ones were, on the same streams."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from baechi.torch.base import _private
from baechi.torch.base.devices import LogicalDevice
from baechi.torch.base.runs_again import check_version
from baechi.torch.run.sent_tensors import SentTensors


class PlacedRuns:
    """Runs operators on their devices, and holds what their backwards keep."""

    hooks = None  # autograd keeps what has no hook

    def __init__(
        self,
        sent: SentTensors,
        run_again: Callable[[Callable[..., Any], Any, Any], Any],
        computed: Callable[..., Any],
    ) -> None:
        self._sent = sent
        self._run_again = run_again  # between what the backward did and does next
        self._computed = computed

    def compute(
        self, call: Callable[..., Any], args: Any, kwargs: Any, device: LogicalDevice
    ) -> Any:
        """Run an operator for the first time."""
        return self._computed(call, args, kwargs, device)

    def compute_again(
        self,
        key: str,  # noqa: ARG002
        call: Callable[..., Any],
        args: Any,
        kwargs: Any,
        at: LogicalDevice,
    ) -> Any:
        """Run it again."""
        return self._computed(call, args, kwargs, at)

    def behind(self, run: Callable[[], None]) -> None:
        """Have all that a backward asks for run, behind what that has done."""
        self._run_again(run, (), {})

    def sent(self, tensor: torch.Tensor, device: LogicalDevice) -> Callable[[], torch.Tensor]:
        """Return what brings what a second run made to another device."""
        return functools.partial(self._sent.moved, tensor, device)

    def made(self, tensor: torch.Tensor, device: LogicalDevice) -> None:
        """Take note of where a tensor is."""
        self._sent.mark(tensor, device)

    def read(self, tensor: torch.Tensor, device: LogicalDevice) -> torch.Tensor:
        """Return what was made on a stream of ours as the stream that runs now may read it."""
        own = device.own_stream
        if own is not None:
            now = torch.accelerator.current_stream(device.torch_device)
            if now != own:
                now.wait_event(own.record_event())
                _private.keep_for(tensor, now)
        return tensor

    def keep(self, tensor: torch.Tensor) -> tuple[torch.Tensor, int]:
        """Hold a tensor for a backward, which has to find it as it is."""
        return tensor.detach(), _private.version_of(tensor)

    def give(self, kept: tuple[torch.Tensor, int]) -> torch.Tensor:
        """Return it."""
        check_version(*kept)
        return kept[0]

    def hold(self, tensor: torch.Tensor) -> torch.Tensor:
        """Hold a tensor for a second run, and not what it was made of."""
        return tensor.detach()


class StepRuns(PlacedRuns):
    """The same in a step of micro-batches, which orders the streams and asks for runs itself."""

    def __init__(self, sent: SentTensors) -> None:
        super().__init__(sent, _at_once, on_device)

    def sent(self, tensor: torch.Tensor, device: LogicalDevice) -> Callable[[], torch.Tensor]:
        """Send what a second run made, behind it; its reader waits."""
        source = self._sent.owner(tensor)
        assert source is not None
        return self._sent.links.send(tensor, source, device).wait


def _at_once(run: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    return run(*args, **kwargs)


def on_device(call: Callable[..., Any], args: Any, kwargs: Any, device: LogicalDevice) -> Any:
    """Run a call under the stream of its device."""
    with device.computing():
        return call(*args, **kwargs)
