# SPDX-License-Identifier: Apache-2.0
"""Threads that share a placed model, and models that have threads of their own."""

from __future__ import annotations

import copy
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

pytest.importorskip("torch")

import baechi.torch
import torch
from baechi.torch.base import _private_autograd, _private_export
from baechi.torch.trace import exported
from torch import nn

import baechi

sim: Any = pytest.importorskip("baechi.torch.sim")


class Slow(nn.Module):
    """Says that its forward runs, and lets other threads come in between."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.a(x)
        entered.set()
        time.sleep(0.05)
        return self.b(x)


entered = threading.Event()


def test_a_call_while_a_graph_is_made_in_another_thread_is_as_any() -> None:
    torch.manual_seed(1)
    plain = Slow().eval()
    model = copy.deepcopy(plain)
    with torch.no_grad():
        placed = baechi.torch.place(model, torch.randn(2, 4), "2x1GiB", devices=["cpu"] * 2)
        for rank in range(1, 5):  # each gets a graph
            batch, known = torch.randn(*[1] * rank, 3, 4), torch.randn(2, 4)
            found: list[Any] = []

            def call(batch: torch.Tensor = batch, found: list[Any] = found) -> None:
                with torch.no_grad():
                    found.append(model(batch))

            entered.clear()
            other = threading.Thread(target=call)
            other.start()
            entered.wait()
            torch.testing.assert_close(model(known), plain(known))
            other.join()
            torch.testing.assert_close(found[0], plain(batch))
        assert placed.graphs == 5
        placed.restore()


def test_a_part_that_another_thread_calls_while_a_graph_is_made_waits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    torch.manual_seed(1)
    plain, x = Slow().eval(), torch.randn(2, 4)
    model = copy.deepcopy(plain)
    found: list[torch.Tensor] = []
    while_traced: list[Any] = []  # what a thread has looked up that goes on only now or later
    others: list[threading.Thread] = []
    export_program = _private_export.export_program

    def call(part: Any) -> None:
        with torch.no_grad():
            found.append(part(x))

    def traced(*given: Any) -> Any:
        while_traced.append(model.a.forward)
        others.append(threading.Thread(target=call, args=(model.a,)))
        others[0].start()
        others[0].join(0.1)
        assert others[0].is_alive()  # it waits for this thread
        return export_program(*given)

    with torch.no_grad():
        placed = baechi.torch.place(model, x, "2x1GiB", devices=["cpu"] * 2)
        monkeypatch.setattr(_private_export, "export_program", traced)
        batch = torch.randn(1, 3, 4)
        torch.testing.assert_close(model(batch), plain(batch))
        others.append(threading.Thread(target=call, args=(while_traced[0],)))
        others[1].start()
        for other in others:
            other.join()
        assert len(while_traced) == 1
        assert len(found) == 2
        for each in found:
            torch.testing.assert_close(each, plain.a(x))
        placed.restore()


def replaced() -> tuple[Any, ...]:
    hooks = torch.autograd.graph.saved_tensors_hooks
    apply = vars(torch.autograd.Function)["apply"]  # it has no code since PyTorch 2.14
    return getattr(torch.autograd.Function.apply, "__code__", apply), hooks.__dict__["__enter__"]


def test_two_threads_that_make_graphs_leave_pytorch_as_it_was(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The first to begin ends first, so that the second would put back what the first had put."""
    before = replaced()
    first_inside, second_inside, first_left = (threading.Event() for _ in range(3))
    graphs: list[Any] = []
    export_program = _private_export.export_program

    def traced(*given: Any) -> Any:
        if threading.current_thread() is first:
            first_inside.set()
            second_inside.wait(0.5)  # it comes only where both are made at once
        else:
            second_inside.set()
            first_left.wait(60)
        return export_program(*given)

    def export() -> None:
        graphs.append(exported.export(Slow(), torch.randn(2, 4)))

    monkeypatch.setattr(_private_export, "export_program", traced)
    first, second = (threading.Thread(target=export) for _ in range(2))
    first.start()
    assert first_inside.wait(60)
    second.start()
    first.join()
    first_left.set()
    second.join()
    assert len(graphs) == 2
    assert replaced() == before


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(_: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 2


def test_a_model_that_is_placed_while_a_graph_is_made_keeps_nothing_of_it() -> None:
    before = replaced()

    seen: list[type] = []

    class Seeing(torch.overrides.TorchFunctionMode):
        def applied(self, cls: type, call: Any, args: Any, kwargs: Any) -> Any:
            seen.append(cls)
            return call(*args, **kwargs)

        def __torch_function__(self, func: Any, _: Any, args: Any = (), kwargs: Any = None) -> Any:
            return func(*args, **(kwargs or {}))

    seeing = Seeing()
    with _private_export.nothing_hidden(ValueError):
        with pytest.raises(ValueError, match="Doubled has a backward of its own"):
            Doubled.apply(torch.ones(1))
        _private_autograd.autograd_calls.begin(seeing)
    with seeing:
        assert Doubled.apply(torch.ones(1)) == 2
    assert seen == [Doubled]
    _private_autograd.autograd_calls.end(seeing)
    assert replaced() == before
    assert Doubled.apply(torch.ones(1)) == 2


class Mapped(nn.Module):
    """Calls its modules in threads."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with ThreadPoolExecutor(2) as pool:
            return sum(pool.map(lambda layer: layer(x), self.layers), x)


def test_a_forward_with_threads_of_its_own_is_refused() -> None:
    model, x = Mapped(), torch.ones(2, 4)
    with pytest.raises(baechi.InputError, match=r"layers\.\d is called by another thread"):
        baechi.torch.place(model, x, "2x1GiB", devices=["cpu"] * 2)
    model(x)  # nothing is left of the attempt
