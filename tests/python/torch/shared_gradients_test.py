# SPDX-License-Identifier: Apache-2.0
"""What is on its way to another device arrives as it was sent, whoever changes it meanwhile.

Of gradients; every program keeps links busy.
"""

from __future__ import annotations

import contextlib
import functools
import gc
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("torch")

import baechi.torch
import torch
from baechi.torch.memory.eager import StepContext, held_bytes
from baechi.torch.memory.fit import GraphStep, Memory
from baechi.torch.run import communication, sent_gradients
from baechi.torch.trace.exported import export
from busy_links import X, both_tiers, goes_wrong, keep_busy, machine, placed
from torch import nn
from torch.utils import checkpoint as checkpointing

sim: Any = pytest.importorskip("baechi.torch.sim")

__all__ = ["machine"]  # a fixture that all tests here use


@pytest.fixture(params=["native", "python"])
def path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "python":
        monkeypatch.setattr(communication, "native_transfer", lambda: None)
    return str(request.param)


both_paths = pytest.mark.usefixtures("path")


def weights(*names: str) -> dict[str, nn.Parameter]:
    numbers = (i + torch.linspace(0.5, 1.5, 8).double() for i in range(len(names)))
    return {name: nn.Parameter(number) for name, number in zip(names, numbers, strict=True)}


class Model(nn.Module):
    """Has weights by name, and a module inside, or it would be one operator."""

    def __init__(self, *names: str) -> None:
        super().__init__()
        self.gate = nn.Sigmoid()
        for name, weight in weights(*names).items():
            self.register_parameter(name, weight)


class Shared(Model):
    """The gradient of `u + now` is one tensor, for `u` abroad and for `now`, which gets another."""

    there = ("mul@2", "gate", "add@3", "mul@4")

    def __init__(self) -> None:
        super().__init__("a", "b", "c")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        u = self.a * x
        first = self.b * x
        now = self.c * x
        gate = self.gate(now)
        y = u + now
        return first + y * gate


def gradients(model: nn.Module) -> dict[str, torch.Tensor]:
    for device in range(4):
        sim.synchronize(device)
    return {n: p.grad.cpu() for n, p in model.named_parameters() if p.grad is not None}


def alone(make: Callable[[], nn.Module], x: torch.Tensor = X) -> dict[str, torch.Tensor]:
    model = make()
    model(x).sum().backward()
    return gradients(model)


def check_same(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    assert list(found) == list(expected)
    for name, gradient in found.items():
        torch.testing.assert_close(gradient, expected[name], msg=lambda m, n=name: f"{n}: {m}")


def trained(place: Any, x: torch.Tensor = X, busy: tuple[int, int] = (1, 0)) -> dict[str, Any]:
    """Return the gradients of a step; what goes from the one device to the other is late."""
    out = place.model(x).sum()
    keep_busy(place, *busy)
    out.backward()
    return gradients(place.model)


@both_paths
@both_tiers
def test_a_gradient_with_a_reader_abroad_is_added_to(tier: int) -> None:
    place = placed(Shared(), tier, d1=Shared.there)
    check_same(trained(place), alone(Shared))
    assert place.tier == tier
    place.restore()


class OnAReceiveStream(Model):
    """The sum is taken where a gradient for a third device is sent from."""

    def __init__(self) -> None:
        super().__init__("a", "b", "c")
        self.same = nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first = self.b * x
        u = self.a * x
        v = self.same(self.c * x)
        w = self.gate(v)
        y = u + v
        return y * w - first


@both_paths
def test_a_gradient_is_added_to_on_the_stream_of_another_transfer() -> None:
    there = ("same", "add@3", "mul@4", "sub@5")
    place = placed(OnAReceiveStream(), 1, d1=there, d2=("gate",), d3=("mul@2",))
    check_same(trained(place), alone(OnAReceiveStream))
    place.restore()


class ReadTwice(Model):
    """The gradient of `u + now` joins that of another reader of `u`, which came from abroad."""

    there = ("mul@1", "gate", "add@2", "sin@3", "mul@4", "add@5")

    def __init__(self) -> None:
        super().__init__("a", "b")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        u = self.a * x
        now = self.b * x
        gate = self.gate(now)
        y = u + now
        other = u.sin()
        return y * gate + other


@both_paths
@both_tiers
def test_a_gradient_is_added_to_that_of_another_reader_of_what_was_sent(tier: int) -> None:
    place = placed(ReadTwice(), tier, d1=ReadTwice.there)
    check_same(trained(place, busy=(0, 1)), alone(ReadTwice))
    assert place.tier == tier
    place.restore()


class Stolen(Model):
    """The gradient of `u + p` becomes that of `p`, and is sent for `u`."""

    def __init__(self) -> None:
        super().__init__("a", "b", "p")

    def read(self) -> torch.Tensor:
        return self.p

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first = self.b * x
        u = self.a * x
        return first + self.gate(u + self.read())


class StolenView(Stolen):
    """The gradient of `p` is a view of what is sent."""

    def read(self) -> torch.Tensor:
        return self.p.view(2, 4).view(8)


@both_paths
@both_tiers
@pytest.mark.parametrize("make", [Stolen, StolenView])
def test_the_gradient_of_a_weight_is_zeroed_behind_the_backward(make: Any, tier: int) -> None:
    model = make()
    place = placed(model, tier, d1=there_of(model))
    out = model(X).sum()
    keep_busy(place, 1, 0)
    out.backward()
    model.p.grad.zero_()
    expected = alone(make)
    expected["p"].zero_()
    check_same(gradients(model), expected)
    place.restore()


def there_of(model: nn.Module) -> tuple[str, ...]:
    """Return the operators of a `Stolen` behind the products."""
    return tuple(op.key for op in baechi.torch.capture(model, X).ops[2:])


@both_paths
@both_tiers
def test_the_caller_changes_the_gradient_that_it_gave(tier: int) -> None:
    model = Stolen()
    place = placed(model, tier, d1=there_of(model))
    out = model(X.to("sim:1"))
    given = torch.ones_like(out)
    keep_busy(place, 1, 0)
    out.backward(given)
    given.zero_()
    check_same(gradients(model), alone(Stolen))
    place.restore()


@both_paths
@both_tiers
def test_the_caller_changes_a_gradient_that_it_asked_for(tier: int) -> None:
    model = Stolen()
    place = placed(model, tier, d1=there_of(model))
    out = model(X).sum()
    keep_busy(place, 1, 0)
    found = torch.autograd.grad(out, [model.p, model.a])
    found[0].zero_()
    torch.testing.assert_close(found[1].cpu(), alone(Stolen)["a"])
    place.restore()


def zero_gradient(weight: torch.Tensor) -> None:
    assert weight.grad is not None
    weight.grad.zero_()


@both_paths
@both_tiers
def test_a_hook_changes_the_gradient_of_a_weight(tier: int) -> None:
    model = Stolen()
    place = placed(model, tier, d1=there_of(model))
    model.p.register_post_accumulate_grad_hook(zero_gradient)
    found = trained(place)
    check_same({n: found[n] for n in "ab"}, {n: alone(Stolen)[n] for n in "ab"})
    place.restore()


class Twice(Model):
    """In the backward of its backward a gradient that goes to the other device is added to."""

    def __init__(self) -> None:
        super().__init__("a", "b", "c")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        u = self.a * x
        z = self.c * u
        square = z * z
        t = u + self.b * x
        return self.gate(t) + square


def twice(model: nn.Module, before: Callable[[], None] = lambda: None) -> dict[str, torch.Tensor]:
    out = model(X).sum()
    found = torch.autograd.grad(out, [model.a, model.b], create_graph=True)
    total = sum((g * g).sum().to(X.device) for g in found)
    before()
    total.backward()
    return gradients(model)


@both_paths
@both_tiers
def test_the_backward_of_a_backward(tier: int) -> None:
    there = ("mul@1", "mul@2")
    place = placed(Twice(), tier, d1=there)

    def busy() -> None:
        keep_busy(place, 0, 1)
        keep_busy(place, 1, 0)

    check_same(twice(place.model, busy), twice(Twice()))
    place.restore()


class Failing(torch.autograd.Function):
    """Has no gradient."""

    @staticmethod
    def forward(_: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(_: Any, *__: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("this backward fails")


def memory_held(model: nn.Module) -> list[int]:
    model.zero_grad()
    gc.collect()
    return [sim.memory_allocated(device) for device in range(2)]


@both_paths
@both_tiers
def test_a_backward_that_fails_leaves_nothing(tier: int) -> None:
    """What had come that far is right, and no gradient is kept."""
    model = Stolen()
    place = placed(model, tier, d1=there_of(model))
    late = torch.ones(8, dtype=torch.float64, device="sim:1", requires_grad=True)
    x = X.to("sim:1")

    def step(fails: bool) -> None:
        behind = Failing.apply(late) if fails else late * 1  # made first, its backward comes last
        model.zero_grad()
        out = model(x) + behind
        given = torch.ones_like(out)
        keep_busy(place, 1, 0)
        with contextlib.suppress(RuntimeError):
            out.backward(given)
        given.zero_()

    step(fails=False)
    held = memory_held(model)
    step(fails=True)
    check_same(gradients(model), alone(Stolen))
    assert memory_held(model) == held
    place.restore()


class Inside(Shared):
    """Runs the shared part in a backward inside the backward."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scaled = x * self.a.mean()
        return checkpointing.checkpoint(super().forward, scaled, use_reentrant=True)


@both_paths
def test_a_backward_inside_a_backward() -> None:
    there = ("mul@4", "gate", "add@5", "mul@6")
    place = placed(Inside(), 1, d1=there)
    check_same(trained(place), alone(Inside))
    place.restore()


# Memory


class Large(nn.Module):
    """Sends the gradient of a sum, and has it added to, or makes it that of a weight."""

    def __init__(self, added: bool) -> None:
        super().__init__()
        self.gate, self.added = nn.Sigmoid(), added
        for name in "ace":
            self.register_parameter(name, nn.Parameter(torch.ones(4096)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = self.gate(x).sum()
        if self.added:
            out = out + (self.c * 3).sum()
        out = out + ((self.a.neg() + self.c) * 2).sum()
        return out + (self.e * 5).sum()


@both_tiers
@pytest.mark.parametrize("added", [True, False])
def test_the_second_buffer_is_among_the_predicted_peaks(added: bool, tier: int) -> None:
    sim.configure(asynchronous=False)
    model, x = Large(added), torch.randn(16)
    captured, exported = baechi.torch.capture(model, x), export(model, x)
    there = tuple(op.key for op in captured.ops if not op.key.startswith("neg"))
    physical = [torch.device("sim:0"), torch.device("sim:1")]
    record = functools.partial(baechi.torch.capture, model, x)
    graph = GraphStep(exported, "streams", physical, lambda units: record(units=units))
    around = StepContext("none", "d1", held_bytes([x]))
    memory = Memory(model, captured, ["d0", "d1"], (tier,), around, graph)
    device_of = {op.key: "d1" if op.key in there else "d0" for op in captured.ops}
    predicted = [peak.bytes for peak in memory.peaks(device_of)[tier].values()]
    place, x = placed(model, tier, x, d1=there), x.to("sim:1")
    for _ in range(2):
        model.zero_grad()
        for device in range(2):
            sim.reset_peak_memory_stats(device)
        model(x).backward()
    assert [sim.max_memory_allocated(device) for device in range(2)] == predicted
    buffers = 6 if added else 5  # two weights, the gradient of `e`, that which is sent, its double
    assert predicted[1] == pytest.approx(buffers * 4 * 4096, abs=2048)
    assert place.tier == tier
    place.restore()


# What is put in wrongly is noticed


def test_a_reference_that_is_not_kept_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(communication, "native_transfer", lambda: None)
    monkeypatch.setattr(sent_gradients.SentGradients, "sent", lambda *_: None)
    assert goes_wrong(lambda: test_a_gradient_with_a_reader_abroad_is_added_to(1))
    assert goes_wrong(lambda: test_the_caller_changes_the_gradient_that_it_gave(1))


def test_an_end_that_waits_for_nothing_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(communication, "native_transfer", lambda: None)
    monkeypatch.setattr(sent_gradients, "_order_others_behind", lambda *_: None)
    assert goes_wrong(lambda: test_the_caller_changes_the_gradient_that_it_gave(1))
