# SPDX-License-Identifier: Apache-2.0
"""One model of the bank on this machine's real accelerator, in a process of its own.

``python -m experiments.bank_accelerator NAME [SEED]``, as ``./do bank --accelerator`` starts it.
All devices of a trial are logical ones of one accelerator: each has streams of its own, and what
one sends another is a copy. A stream that is entered first idles for a random time, so that work
which does not wait for what it needs is found out.
"""

from __future__ import annotations

import random
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from baechi.torch.base import _private
from baechi.torch.base.nested import map_tensors

from experiments import bank_row
from experiments.bank_row import ROOM, Subject, Trial

if TYPE_CHECKING:
    from collections.abc import Iterator

TRIALS = (
    Trial("one device", 1, method="single"),
    Trial("random, tier 1, plain", 3, 1, "plain", asynchronous=True),
    Trial("random, tier 1, streams", 4, 1, asynchronous=True, inputs_on="accelerator"),
    Trial("random, tier 2, plain", 3, 2, "plain", asynchronous=True, inputs_on="accelerator"),
    Trial("random, tier 2, streams", 4, 2, asynchronous=True),
    Trial("random, tier 2, ordered", 3, 2, "streams+order", asynchronous=True),
)
LONGEST = 400_000  # cycles of a delay, about 200 us


def idle(cycles: int) -> None:
    """Keep the current stream from going on for so long."""
    torch.cuda._sleep(cycles)


@contextmanager
def delays(seed: int) -> Iterator[None]:
    """Let streams idle for a random time whenever one is entered."""
    drawn = random.Random(seed)
    enter = _private.on_stream.__enter__

    def late(self: Any) -> None:
        enter(self)
        if drawn.random() < 0.5:
            idle(drawn.randrange(LONGEST))

    _private.on_stream.__enter__ = late  # type: ignore[method-assign]
    try:
        yield
    finally:
        _private.on_stream.__enter__ = enter  # type: ignore[method-assign]


class Accelerated(Subject):
    """A model of the bank, trained on the accelerator without a plan and with one."""

    trials = TRIALS

    def trained_alone(self) -> bank_row.Trained:
        """Train on the accelerator, unplaced."""
        return self.trained(self.built().to(accelerator()), self._sent("accelerator"))

    def devices(self, trial: Trial) -> list[str]:
        """Return the accelerator, as often as the trial has devices."""
        return [str(accelerator())] * trial.devices

    def _sent(self, where: str) -> list[Any]:
        device = accelerator() if where == "accelerator" else where
        return [map_tensors(lambda t: t.to(device), batch) for batch in self.batches]

    def _run(self, trial: Trial, number: int, _share: float | None) -> dict[str, Any]:
        seed = self.seed * 100 + number
        result: dict[str, Any] = {"result": "ok"}
        batches = self._sent(trial.inputs_on)
        placed = self._placed(trial, seed, ROOM, batches)

        def after() -> None:
            torch.accelerator.synchronize()
            result.update(tier=placed.tier, note=placed.tier_note, transfers=placed.transfers)
            placed.restore()

        with delays(seed):
            found = self.trained(placed.model, batches, after=after)
        if said := bank_row.difference(self.truth, found):
            result |= {"result": "WRONG", "said": said}
        return result


def accelerator() -> torch.device:
    """Return this machine's."""
    found = torch.accelerator.current_accelerator()
    if found is None or found.type != "cuda":
        raise RuntimeError("no accelerator with CUDA's or ROCm's streams is here")
    return torch.device(found.type, 0)


if __name__ == "__main__":
    bank_row.main(Accelerated, sys.argv[1], *map(int, sys.argv[2:3]))
