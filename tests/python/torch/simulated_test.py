# SPDX-License-Identifier: Apache-2.0
"""Placed models on simulated accelerators: mixed devices, races and full memories are real."""

from __future__ import annotations

import inspect
import textwrap
from typing import Any

import pytest

pytest.importorskip("torch")

import baechi.torch
import torch
from baechi.torch.base import _private_autograd, moving
from baechi.torch.base.devices import logical_devices
from baechi.torch.cost.graph_generator import graph_of
from baechi.torch.cost.profiler import estimate
from baechi.torch.memory import eager as memory
from baechi.torch.placing import assign
from baechi.torch.record.capture import capture_on
from baechi.torch.run import communication, eager
from random_placement import placed_at_random, simulated
from torch import nn
from torch_models import ALL, CASES, built, deep
from training_steps import close, loss_like, train

import baechi

sim: Any = pytest.importorskip("baechi.torch.sim")


pytestmark = pytest.mark.usefixtures("asynchronous_devices")


def scattered(model: Any, inputs: Any, seed: int, **options: Any) -> Any:
    return placed_at_random(model, inputs, simulated(4), seed=seed, tier=1, **options)


@pytest.mark.repeats
@pytest.mark.filterwarnings("ignore:.*not in the recorded step")  # what "turns" is about
@pytest.mark.parametrize("name", ALL)
def test_losses_and_gradients_are_those_of_the_unplaced_model(name: str) -> None:
    case = ALL[name]
    batches = [case.inputs(2), case.inputs(3), case.inputs(2), case.inputs(2), case.inputs(3)]
    expected = train(built(case), batches)
    model = built(case)
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    placed = scattered(model, case.inputs(2), seed=3)
    assert {p.device.type for p in model.parameters()} == {"sim"}
    close(expected, train(model, batches, optimizer))
    placed.restore()
    assert {p.device.type for p in model.parameters()} == {"cpu"}


@pytest.mark.repeats
@pytest.mark.parametrize("mode", ["plain", "streams"])
@pytest.mark.parametrize("shared", [False, True])
def test_modes_and_logical_devices(mode: str, shared: bool) -> None:
    case = CASES["inception"]
    batches = [case.inputs(2), case.inputs(3)]
    model = built(case)
    devices = ["sim:0", "sim:0", "sim:1", "sim:1"] if shared else simulated(4)
    placed = baechi.torch.place(
        model, case.inputs(2), "4x1GiB", method="random", seed=5, devices=devices, mode=mode, tier=1
    )
    close(train(built(case), batches), train(model, batches))
    placed.restore()


def test_the_transfer_in_python_is_as_good(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(communication, "native_transfer", lambda: None)
    case = CASES["transformer"]
    model = built(case)
    placed = scattered(model, case.inputs(2), seed=2)
    close(train(built(case), [case.inputs(2)] * 2), train(model, [case.inputs(2)] * 2))
    placed.restore()


def right_runs(runs: int) -> int:
    case = CASES["unet"]  # no kernel of it writes where a tensor says, which may be read too early
    batches = [case.inputs(2)] * 2
    expected = train(built(case), batches)
    right = 0
    for seed in range(runs):
        model = built(case)
        placed = scattered(model, case.inputs(2), seed=seed)
        try:
            close(expected, train(model, batches))
            right += 1
        except AssertionError:
            pass
        torch.accelerator.synchronize()
        placed.restore()
    return right


def without(function: Any, line: str) -> Any:
    """Return a function of `communication` that lacks one of its lines."""
    source = textwrap.dedent(inspect.getsource(function)).removeprefix("@staticmethod\n")
    assert source.count(line) == 1
    names: dict[str, Any] = {}
    exec(source.replace(line, "pass"), vars(communication), names)
    return names[function.__name__]


@pytest.mark.repeats
@pytest.mark.parametrize(
    ("function", "line"),
    [
        (communication._hop, "send.wait_event(producer.record_event())"),
        (communication._hop, "stored.record_stream(send)"),
        (communication._hop, "copy.record_stream(consumer)"),
        (
            communication._Transfer.backward,
            "receive.wait_event(gradient_receive.record_event())",
        ),
        (communication.Arrival.wait, "self._reader.wait_event(self._event)"),
    ],
    ids=["wait for the producer", "hold the source", "hold the copy", "gradient", "reader"],
)
def test_a_missing_line_of_the_protocol_is_noticed(
    function: Any, line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The machine is able to catch what these tests are about."""
    monkeypatch.setattr(communication, "native_transfer", lambda: None)
    assert right_runs(1) == 1
    planted = without(function, line)
    if function is communication._Transfer.backward:
        monkeypatch.setattr(communication._Transfer, "backward", staticmethod(planted))
    elif function is communication.Arrival.wait:
        monkeypatch.setattr(communication.Arrival, "wait", planted)
    else:
        monkeypatch.setattr(communication, function.__name__, planted)
    assert right_runs(3) < 3


@pytest.mark.repeats
@pytest.mark.parametrize("name", [n for n in ALL if n != "turns"])
def test_planned_placements_train_the_same(name: str) -> None:
    case = ALL[name]
    batches = [case.inputs(2), case.inputs(3), case.inputs(2), case.inputs(2), case.inputs(3)]
    expected = train(built(case), batches)
    model = built(case)
    device = torch.device("sim:0")
    captured = capture_on(device, model, case.inputs(2), loss=loss_like)
    costs = estimate(captured, {"gpu": "rtx2080"})
    graph = graph_of(captured, costs).graph
    need = memory.peak_memory(captured, dict.fromkeys(graph.names, "gpu:0"))["gpu:0"]
    for count, method, share in ((2, "m-etf", 0.8), (3, "m-sct", 0.75), (4, "auto", 0.75)):
        cluster = f"{count}x{int(share * need)}B"
        plan = baechi.place_graph(graph, cluster, method=method, budget="50ms", bounds=False)
        assert len(set(plan.device_of.values())) > 1
        physical = dict(zip([d.name for d in plan.cluster.devices], simulated(count), strict=True))
        placed = assign(model, captured, plan.device_of, physical, plan=plan, tier=1)
        close(expected, train(model, batches))
        assert placed.transfers > 0
        placed.restore()
        model.load_state_dict(built(case).state_dict())
        model.zero_grad()


def test_weights_that_share_a_storage_share_it_when_moved() -> None:
    whole = torch.randn(8)
    left, right = nn.Parameter(torch.empty(0)), nn.Parameter(torch.empty(0))
    left.data, right.data = whole[:6], whole[2:]
    device = torch.device("sim:1")
    moving.move_weights([(left, device), (right, device)])
    with torch.no_grad():
        left[2] = 5.0
    assert right.device == device
    assert right[0].item() == 5.0


class Ladder(nn.Module):
    """A chain on one device; each of its results is read on another."""

    def __init__(self) -> None:
        super().__init__()
        self.chain = nn.ModuleList(nn.Tanh() for _ in range(8))
        self.reader = nn.ModuleList(nn.Sigmoid() for _ in range(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        total = None
        for step, reader in zip(self.chain, self.reader, strict=True):
            x = step(x)
            total = reader(x) if total is None else torch.maximum(total, reader(x))
        assert total is not None
        return total


def virtual_times(mode: str, model: Any = None) -> tuple[float, float]:
    """Return how long the forward and the backward take on the virtual clock."""
    model, x = model or Ladder(), torch.randn(4, 4, device="sim:0", requires_grad=True)
    captured = baechi.torch.capture(model, x)
    device_of = {op.key: "d0" if op.key.startswith("chain") else "d1" for op in captured.ops}
    placed = assign(model, captured, device_of, {"d0": "sim:0", "d1": "sim:1"}, mode=mode, tier=1)
    sim.reset_virtual_clock()
    y = model(x)
    forward = sim.virtual_time()
    gradient = torch.ones_like(y)
    sim.reset_virtual_clock()
    y.backward(gradient)
    backward = sim.virtual_time()
    placed.restore()
    return forward, backward


def test_transfers_overlap_with_computing_in_both_directions() -> None:
    with sim.configured(
        clock="virtual", operator_time="1ms", link=sim.Link("4ms", None), poison=False
    ):
        plain, streams = virtual_times("plain"), virtual_times("streams")
    assert streams[0] < 0.8 * plain[0]
    assert streams[1] < 0.8 * plain[1]


@pytest.mark.parametrize("native", [True, False])
@pytest.mark.parametrize("mode", ["plain", "streams"])
def test_gradients_go_back_before_all_else(
    native: bool, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not native:
        monkeypatch.setattr(communication, "native_transfer", lambda: None)
    here, there = logical_devices(["a", "b"], ["sim:0", "sim:1"])
    links = communication.Links([here, there], mode)
    x = torch.ones(2, device="sim:0", requires_grad=True) * 2
    copy = links.send(x, here, there).wait()
    assert copy.device == there.torch_device
    assert copy.grad_fn is not None
    assert _private_autograd.sequence_number(copy.grad_fn) == 2**64 - 1


class Twofold(nn.Module):
    """A module of several operators, which runs as one when they share a device."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Tanh()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.neg(self.inner(x))


class WideLadder(nn.Module):
    """A chain of modules; what they return is read on another device when the chain is done."""

    def __init__(self) -> None:
        super().__init__()
        self.chain = nn.ModuleList(Twofold() for _ in range(8))
        self.reader = nn.ModuleList(nn.Sigmoid() for _ in range(8))

    def forward(self, x: torch.Tensor) -> Any:
        steps = []
        for step in self.chain:
            x = step(x)
            steps.append(x)
        return [reader(y) for reader, y in zip(self.reader, steps, strict=True)]


def test_what_a_module_returns_is_sent_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def forward_time() -> float:
        model, x = WideLadder(), torch.randn(4, 4, device="sim:0")
        captured = baechi.torch.capture(model, x, training=False)
        device_of = {op.key: "d0" if op.key.startswith("chain") else "d1" for op in captured.ops}
        placed = assign(model, captured, device_of, {"d0": "sim:0", "d1": "sim:1"}, tier=1)
        sim.reset_virtual_clock()
        with torch.no_grad():
            model(x)
        took = float(sim.virtual_time())
        placed.restore()
        return took

    with sim.configured(
        clock="virtual", operator_time="1ms", link=sim.Link("2ms", None), poison=False
    ):
        early = forward_time()
        monkeypatch.setattr(eager.EagerRunner, "_push", lambda *_: None)
        late = forward_time()
    # The last of the chain leaves after 16 ms and is read at 18; eight results come home.
    assert early <= 1e-3 * (16 + 2 + 1 + 8 * 2)
    assert late > early + 5e-3


class Behind(nn.Module):
    """A view of what was made first, taken behind other work, and perhaps behind a change."""

    def __init__(self, changes: bool) -> None:
        super().__init__()
        self.changes = changes
        self.first = nn.Tanh()
        self.chain = nn.ModuleList(nn.Tanh() for _ in range(8))
        self.reader = nn.ModuleList(nn.Sigmoid() for _ in range(2))

    def forward(self, x: torch.Tensor) -> Any:
        made = self.first(x)
        x = made + 1
        early = self.reader[0](made[0])
        for step in self.chain:
            x = step(x)
        if self.changes:
            made.mul_(x)
        return x, early, self.reader[1](made[1])


def forward_of(model: nn.Module, devices: list[str]) -> tuple[float, Any, Any]:
    """Return how long the forward takes on the virtual clock, and what it returns here and there.

    What `reader` begins with is on the second device.
    """
    x = torch.randn(4, 4)
    captured = baechi.torch.capture(model, x)
    device_of = {op.key: "d1" if op.key.startswith("reader") else "d0" for op in captured.ops}
    expected = model(x)
    placed = assign(
        model, captured, device_of, dict(zip(("d0", "d1"), devices, strict=True)), tier=1
    )
    x = x.to("sim:0")
    sim.reset_virtual_clock()
    found = placed.model(x)
    took = float(sim.virtual_time())
    placed.restore()
    return took, [t.cpu() for t in found], list(expected)


@pytest.mark.parametrize("devices", [["sim:0", "sim:1"], ["sim:0", "sim:0"]])
def test_a_view_is_sent_when_its_storage_is_ready(devices: list[str]) -> None:
    with sim.configured(
        clock="virtual", operator_time="1ms", link=sim.Link("100us", None), poison=False
    ):
        took, found, expected = forward_of(Behind(changes=False), devices)
    torch.testing.assert_close(found, expected)
    assert took == pytest.approx(10e-3, abs=0.3e-3)  # the chain


@pytest.mark.parametrize("devices", [["sim:0", "sim:1"], ["sim:0", "sim:0"]])
def test_a_view_of_what_is_changed_is_sent_behind_the_change(devices: list[str]) -> None:
    with sim.configured(operator_time="5ms"):
        _, found, expected = forward_of(Behind(changes=True), devices)
    torch.testing.assert_close(found, expected)


class Shared(nn.Module):
    """What was made first is read on three devices; the last of them has work of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Tanh()
        self.own = nn.Sequential(*(nn.Tanh() for _ in range(8)))
        self.one = nn.Sequential(*(nn.Tanh() for _ in range(6)))
        self.two = nn.Sequential(*(nn.Tanh() for _ in range(6)))

    def forward(self, x: torch.Tensor) -> Any:
        x = self.first(x)
        return self.own(x), self.one(x), self.two(x)


def test_gradients_that_come_back_hold_up_no_other_work() -> None:
    with sim.configured(
        clock="virtual", operator_time="1ms", link=sim.Link("100us", None), poison=False
    ):
        model, x = Shared(), torch.randn(4, 4, device="sim:0", requires_grad=True)
        captured = baechi.torch.capture(model, x)
        device_of = {
            op.key: {"one": "d1", "two": "d2"}.get(op.key.partition(".")[0], "d0")
            for op in captured.ops
        }
        devices = {f"d{i}": f"sim:{i}" for i in range(3)}
        placed = assign(model, captured, device_of, devices, tier=1)
        outputs = model(x)
        gradients = [torch.ones_like(y) for y in outputs]
        sim.reset_virtual_clock()
        torch.autograd.backward(outputs, gradients)
        took = float(sim.virtual_time())
        placed.restore()
    # The device's own eight, two sums at most behind them, and the first operator.
    assert took == pytest.approx(10.2e-3, abs=0.5e-3)


def test_the_accelerators_of_the_machine_are_the_cluster_by_default() -> None:
    inputs = torch.randn(4, 256)
    sim.configure(memory=["8MiB", "8MiB", "4MiB", "8MiB"])
    placed = baechi.torch.place(deep(), inputs, optimizer="sgd")
    assert placed.plan is not None
    assert [d.capacity >> 20 for d in placed.plan.cluster.devices] == [8, 8, 4, 8]
    placed.restore()
