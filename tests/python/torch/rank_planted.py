# SPDX-License-Identifier: Apache-2.0
"""What two processes do in rank_planted_test.py: python rank_planted.py FOLDER.

They train the same model with a fault in what sends and receives, a different one each time.
"""

from __future__ import annotations

import contextlib
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import baechi.torch
import rank_cases
import torch
from baechi.torch.ranks import transport
from baechi.torch.ranks.foreseen import Foreseen
from baechi.torch.ranks.messages import Message
from torch import distributed, nn

SAMPLES, WIDTH = 4, 6
ON_OTHER = ("third", "fourth", ">loss")  # the operators of rank 1
SLOW = 0.5  # seconds before a message leaves where nobody waits for it


class Adding(nn.Module):
    """Reads two values."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(WIDTH, WIDTH))

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.tanh(x + y) @ self.weight


class Crossed(nn.Module):
    """What leaves first is read last, and so are the gradients; all have the same shape."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.fourth = Adding()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        early = self.first(x)
        late = self.second(early)
        y: torch.Tensor = self.fourth(self.third(late), early)
        return y


def crossed() -> tuple[nn.Module, torch.Tensor]:
    """Return the model and a batch."""
    torch.manual_seed(5)
    return Crossed().double(), torch.randn(SAMPLES, WIDTH, dtype=torch.double)


def placed_crossed() -> tuple[nn.Module, Callable[[], torch.Tensor], Any]:
    """Return the model over two ranks, a step of it, and what it is placed by."""
    model, x = crossed()
    how: dict[str, Any] = {
        "devices": ["cpu"] * 2,
        "loss": rank_cases.mean_square,
        "micro_batches": 1,
        "optimizer": "sgd",
        "bounds": False,
    }
    names = baechi.torch.plan(model, x, "2x1GiB", method="single", **how).graph.names
    where = {name: f"gpu:{int(name.startswith(ON_OTHER))}" for name in names}
    placed = baechi.torch.place(
        model, x, "2x1GiB", method="expert", expert=where, verbose=False, **how
    )
    return model, lambda: placed.step(x), placed


@contextlib.contextmanager
def asked_by_readers(gradients: bool) -> Iterator[None]:
    """Ask for values, or gradients, when they are read, and not in the order of the sends."""
    ask, wait = transport.Transport.received, transport.Arriving.wait
    late: dict[int, Message] = {}

    def received(self: Any, buffer: torch.Tensor, message: Message) -> Any:
        if message.is_gradient == gradients:
            late[buffer.data_ptr()] = message
            return None
        return ask(self, buffer, message)

    def waited(self: Any) -> torch.Tensor:
        message = late.pop(self.tensor.data_ptr(), None)
        if message is not None:
            self._work = ask(self._transport, self.tensor, message)
        return wait(self)

    with (
        mock.patch.object(transport.Transport, "received", received),
        mock.patch.object(transport.Arriving, "wait", waited),
    ):
        yield


@contextlib.contextmanager
def nobody_waits() -> Iterator[None]:
    """Read what was asked for at once, and wait for it when the step ends."""
    send = transport.Transport.send

    def slow(self: Any, tensor: torch.Tensor, message: Message, *, changes: bool) -> None:
        time.sleep(SLOW)
        send(self, tensor, message, changes=changes)

    def read(self: Any) -> torch.Tensor:
        if not self._is_there:
            self._is_there = True
            self.tensor = self.tensor.clone()  # of what is there by now
        return self.tensor

    with (
        mock.patch.object(transport.Transport, "send", slow),
        mock.patch.object(transport.Arriving, "wait", read),
    ):
        yield


@contextlib.contextmanager
def other_messages() -> Iterator[None]:
    """Have rank 1 foresee other messages than rank 0."""
    text = Foreseen.text

    def other(self: Foreseen) -> str:
        return f"{text(self)} of rank {distributed.get_rank()}"

    with mock.patch.object(Foreseen, "text", other):
        yield


FAULTS: dict[str, Callable[[], Any]] = {
    "none": contextlib.nullcontext,
    "values by readers": lambda: asked_by_readers(False),
    "gradients by readers": lambda: asked_by_readers(True),
    "no waits": nobody_waits,
    "other messages": other_messages,
}


def found_with(fault: str) -> Any:
    """Return the loss of a step and the gradients of this rank, or what is said."""
    with FAULTS[fault]():
        try:
            model, step, placed = placed_crossed()
            loss = step().item()
        except Exception as error:
            return f"{type(error).__name__}: {error}"
    own = rank_cases.own_weights(placed)
    return loss, {n: p.grad for n, p in model.named_parameters() if n in own}, placed.transfers


def main(folder: Path) -> int:
    """Part into two processes; return how many failed."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)

    def work(number: int) -> None:
        rank_cases.join(folder / "rendezvous", number, 2)
        for fault in FAULTS:
            print(fault, flush=True)
            torch.save(found_with(fault), folder / f"{fault} {number}.pt")
        distributed.destroy_process_group()

    return int(any(rank_cases.in_processes(2, folder, work)))


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
