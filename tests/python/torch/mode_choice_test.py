# SPDX-License-Identifier: Apache-2.0
"""`place` takes the mode whose step is predicted to be shortest, and says which and why."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch")

import baechi.torch
import torch
from baechi.torch import planning
from baechi.torch.cost.profiler import Costs, estimate
from baechi.torch.run import graph_gain
from torch import nn
from training_steps import close, train

import baechi

sim: Any = pytest.importorskip("baechi.torch.sim")

pytestmark = pytest.mark.usefixtures("as_by_default")

MILLISECOND = 1_000_000
CLUSTER = baechi.Cluster("2x1GiB", link="1ms,1000GB/s")
DEVICES = ["sim:0", "sim:1"]


class Spark(nn.Module):
    """A long branch, then a short one that shares its weight and feeds another device's.

    In the order of the program the short one waits for all of the long branch, as they are on one
    device; in that of a plan it comes first and both branches run side by side.
    """

    def __init__(self, length: int = 6) -> None:
        super().__init__()
        self.long = nn.ModuleList(nn.Linear(8, 8) for _ in range(length))
        self.spark = nn.Linear(8, 8)
        for layer in self.long:
            layer.weight = self.spark.weight
        self.other = nn.ModuleList(nn.Linear(8, 8) for _ in range(length))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Run both branches."""
        long = x
        for layer in self.long:
            long = layer(long)
        other = self.spark(x)
        for layer in self.other:
            other = layer(other)
        return long + other


class Looks(Spark):
    """The same with a turn that depends on the data, of which there is no graph."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Look at the data, then run both branches."""
        return super().forward(x if x.sum() > -1e9 else -x)


class Chain(nn.Module):
    """Nothing can run beside anything."""

    def __init__(self, length: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(length))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Run the layers with functions between them."""
        for layer in self.layers:
            x = x + layer(x).tanh()
        return x


X = torch.ones(4, 8) / 8


def lasting(model: nn.Module, nanoseconds: int = 10 * MILLISECOND) -> Costs:
    """Return costs with which every operator takes as long."""
    captured = baechi.torch.capture(model, X)
    costs = estimate(captured, {"gpu": "rtx2080"})
    for cost in costs.ops.values():
        cost.forward = dict.fromkeys(cost.forward, nanoseconds)
        cost.backward = dict.fromkeys(cost.backward, nanoseconds)
    return costs


def made(kind: type[nn.Module], *sizes: int) -> nn.Module:
    torch.manual_seed(7)
    return kind(*sizes)


def placed_as_is_best(model: nn.Module, nanoseconds: int, **how: Any) -> baechi.torch.Placed:
    """Place a model whose operators take as long, on two devices."""
    options: dict[str, Any] = {"cluster": CLUSTER, "devices": DEVICES, "budget": "100ms", **how}
    return baechi.torch.place(model, X, costs=lasting(model, nanoseconds), **options)


def steps(placed: baechi.torch.Placed) -> dict[tuple[str, int], float]:
    return {(way.mode, way.tier): way.step for way in placed.choice.ways}


@pytest.mark.usefixtures("asynchronous_devices")
def test_the_order_of_the_plan_is_taken_where_it_is_shorter_and_trains_the_same() -> None:
    batches = [X, torch.randn(4, 8), torch.randn(3, 8)]
    expected = train(made(Spark), batches)
    model = made(Spark)
    placed = placed_as_is_best(model, 10 * MILLISECOND)
    assert placed.plan is not None
    assert (placed.mode, placed.plan.order) == ("streams+order", "planned")
    assert baechi.verify(placed.plan) == []
    close(expected, train(model, batches))
    assert (placed.tier, placed.tier_note) == (2, "")
    found = steps(placed)
    assert found["streams+order", 2] == placed.plan.makespan_ns / 1e9
    assert found["streams+order", 2] < 0.97 * found["streams", 1]
    assert "'streams+order' is taken: its step is the shortest (" in str(placed)
    assert repr(placed) == "<Placed Spark on 2 devices, mode 'streams+order', tier 2>"
    assert placed.verify(X)
    torch.accelerator.synchronize()
    placed.restore()


def virtual_step(mode: str) -> tuple[float, float]:
    """Return the measured and the predicted milliseconds of a forward."""
    machine: dict[str, Any] = {"operator_time": "1ms", "link": sim.Link("1ms", "1000GB/s")}
    with sim.configured(clock="virtual", poison=False, **machine), torch.no_grad():
        model, x = made(Spark).eval().to("sim:0"), X.to("sim:0")
        placed = baechi.torch.place(
            model, x, CLUSTER, devices=DEVICES, costs="measure", optimizer="none", mode=mode
        )
        assert placed.plan is not None
        predicted = placed.plan.makespan_ns / MILLISECOND
        model(x)
        sim.reset_virtual_clock()
        model(x)
        taken = sim.virtual_time() * 1e3
        placed.restore()
        return taken, predicted


def test_the_mode_that_is_taken_is_the_one_that_is_fastest() -> None:
    taken = {mode: virtual_step(mode) for mode in ("auto", "plain", "streams", "streams+order")}
    assert taken["auto"] == taken["streams+order"]
    measured, predicted = taken["auto"]
    assert predicted - 0.01 <= measured <= predicted + 1.01  # the way of `x`, which is outside
    assert all(measured < 0.9 * taken[mode][0] for mode in ("plain", "streams"))


@pytest.mark.usefixtures("sim")
def test_tier_1_is_left_only_where_something_is_gained() -> None:
    placed = placed_as_is_best(made(Chain, 4), 10 * MILLISECOND)
    assert (placed.mode, placed.graphs) == ("streams", 0)
    assert "no plan in its own order can be 3% shorter" in str(placed)
    assert placed.tier_note.startswith("a graph would save about 0 ms")
    placed.restore()
    # Where the host is what a step waits for, its order changes nothing, and a graph does.
    fast = baechi.Cluster("2x1GiB", link="1us,1000GB/s")
    placed = placed_as_is_best(made(Chain, 12), 1000, cluster=fast, method="random", seed=1)
    assert set(steps(placed)) == {("streams", 1), ("streams", 2)}
    assert steps(placed)["streams", 2] < steps(placed)["streams", 1]
    placed.model(X)
    assert (placed.mode, placed.tier) == ("streams", 2)
    placed.restore()


@pytest.mark.usefixtures("sim")
def test_a_model_without_a_graph_keeps_to_the_order_of_its_program() -> None:
    model = made(Looks)
    placed = placed_as_is_best(model, 10 * MILLISECOND)
    assert placed.plan is not None
    assert (placed.mode, placed.plan.order) == ("streams", "program")
    assert "Looks has no graph: " in placed.choice.why
    assert steps(placed)["streams+order", 2] < steps(placed)["streams", 1]
    model(X)
    assert placed.tier == 1
    placed.restore()
    ordered = placed_as_is_best(made(Looks), 10 * MILLISECOND, mode="streams+order")
    assert ordered.plan is not None
    assert ordered.plan.order == "program"  # which is how it runs
    ordered.restore()


@pytest.mark.usefixtures("sim")
def test_nobody_waits_long_for_a_graph_that_was_not_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(graph_gain, "TRACING", 60.0)
    placed = placed_as_is_best(made(Spark), 10 * MILLISECOND)
    assert (placed.mode, placed.graphs) == ("streams", 0)
    assert "takes 60.2 s to trace: mode='streams+order' asks for it" in placed.choice.why
    placed.restore()
    asked = placed_as_is_best(made(Spark), 10 * MILLISECOND, tier=2)
    assert (asked.mode, asked.graphs) == ("streams+order", 1)
    asked.restore()


def test_the_chosen_mode_keeps_to_the_memory_there_is(sim: Any) -> None:
    ample = placed_as_is_best(made(Spark), 10 * MILLISECOND)
    largest = [max(peaks[d] for peaks in ample.tier_peaks.values()) for d in ample.peaks]
    ample.restore()
    there = [sim.memory_allocated(i) for i in range(2)]  # what tests before this one left
    with sim.configured(devices=2, asynchronous=False, memory=max(largest) + max(there)):
        tight = baechi.Cluster("+".join(f"1x{size}B" for size in largest), link="1ms,1000GB/s")
        model = made(Spark)
        placed = placed_as_is_best(model, 10 * MILLISECOND, cluster=tight)
        for i in range(2):
            sim.reset_peak_memory_stats(i)
        for _ in range(2):
            model(X).square().mean().backward()
        assert (placed.mode, placed.tier) == ("streams+order", 2)
        for i, size in enumerate(placed.peaks.values()):
            assert 0 < sim.max_memory_allocated(i) - there[i] <= size <= largest[i]
        placed.restore()


@pytest.mark.usefixtures("sim")
def test_a_graph_without_room_in_the_order_of_the_plan_runs_in_that_of_the_program(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answers = ["its graph needs 8 bytes more than 'gpu:0' has in this plan", ""]
    monkeypatch.setattr(planning, "_too_large", lambda *_: answers.pop(0))
    placed = placed_as_is_best(made(Spark), 10 * MILLISECOND)
    assert placed.plan is not None
    assert (placed.mode, placed.plan.order) == ("streams", "program")
    assert placed.choice.why.startswith("in the order of the plan its graph needs 8 bytes more")
    placed.model(X)
    assert (placed.tier, answers) == (2, [])  # it is traced, and has room so
    placed.restore()
    monkeypatch.undo()
    asked = placed_as_is_best(made(Spark), 10 * MILLISECOND, mode="streams", tier=2)
    assert placed.tier_peaks[2] == asked.tier_peaks[2]
    asked.restore()


@pytest.mark.usefixtures("sim")
def test_the_tier_that_is_asked_for_says_which_modes_there_are() -> None:
    one = placed_as_is_best(made(Spark), 10 * MILLISECOND, tier=1)
    assert (one.mode, one.choice.ways) == ("streams", ())
    assert "tier 1 runs operators in the order of the program" in one.choice.why
    one.restore()
    two = placed_as_is_best(made(Chain, 4), 10 * MILLISECOND, tier=2)
    assert two.mode == "streams"
    two.model(X)
    assert two.tier == 2
    two.restore()


@pytest.mark.usefixtures("sim")
def test_a_plan_made_before_runs_in_the_order_that_it_was_made_for() -> None:
    costs = lasting(made(Spark))
    plan = baechi.torch.plan(made(Spark), X, CLUSTER, costs=costs)
    assert plan.order == "planned"
    placed = baechi.torch.place(made(Spark), X, CLUSTER, plan=plan, devices=DEVICES)
    assert (placed.mode, placed.plan) == ("streams+order", plan)
    placed.restore()
    for how in ({"tier": 1}, {"mode": "streams"}):
        placed = baechi.torch.place(made(Spark), X, plan=plan, devices=DEVICES, **how)
        assert placed.plan is not None
        assert (placed.mode, placed.plan.order) == ("streams", "program")
        assert placed.plan.makespan_ns > plan.makespan_ns  # what that order takes
        assert placed.plan.device_of == plan.device_of
        placed.restore()
    program = baechi.torch.plan(made(Spark), X, CLUSTER, costs=costs, mode="streams")
    placed = baechi.torch.place(made(Spark), X, plan=program, devices=DEVICES)
    assert (placed.mode, placed.plan) == ("streams", program)
    placed.restore()


@pytest.mark.usefixtures("sim")
def test_what_contradicts_itself_is_refused() -> None:
    model = made(Spark)
    with pytest.raises(
        baechi.InputError, match=r"mode is one of auto, plain, streams, streams\+order, not 'fast'"
    ):
        baechi.torch.place(model, X, CLUSTER, mode="fast")
    plan = baechi.torch.plan(model, X, CLUSTER)
    with pytest.raises(baechi.InputError, match=r"cluster: the plan was made for other devices"):
        baechi.torch.place(model, X, "2x4GiB", plan=plan, devices=DEVICES)
    wrong: Any = {"cluster": "4x4GiB"}
    with pytest.raises(baechi.InputError, match=r"plan: expected a baechi\.Plan, found dict"):
        baechi.torch.place(model, X, plan=wrong, devices=DEVICES)


@pytest.mark.usefixtures("sim")
def test_a_plan_made_before_waits_for_no_long_trace_and_says_what_ran(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plan = baechi.torch.plan(made(Spark), X, CLUSTER, costs=lasting(made(Spark)))
    assert plan.order == "planned"
    without = baechi.torch.plan(
        made(Looks), X, CLUSTER, costs=lasting(made(Looks)), mode="streams"
    ).with_order("planned")
    placed = baechi.torch.place(made(Looks), X, plan=without, devices=DEVICES)
    assert placed.plan is not None
    assert (placed.mode, placed.plan.order) == ("streams", "program")
    assert "Looks has no graph: " in placed.choice.why
    assert placed.plan.run_peaks
    placed.restore()
    monkeypatch.setattr(graph_gain, "TRACING", 60.0)
    placed = baechi.torch.place(made(Spark), X, plan=plan, devices=DEVICES)
    assert placed.plan is not None
    assert (placed.mode, placed.graphs, placed.plan.order) == ("streams", 0, "program")
    assert "takes 60.2 s to trace: mode='streams+order' asks for it" in placed.choice.why
    placed.restore()
    for how in ({"mode": "streams+order"}, {"tier": 2}):
        placed = baechi.torch.place(made(Spark), X, plan=plan, devices=DEVICES, **how)
        assert (placed.mode, placed.plan) == ("streams+order", plan)
        placed.restore()


class Changes(nn.Module):
    """A view of a tensor is read late, which a branch changes in place, early."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 8)
        self.long, self.other = (nn.ModuleList(nn.Linear(8, 8) for _ in range(6)) for _ in "12")
        for layer in self.long:
            layer.weight = self.first.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Run two branches, of which the second one changes what the first lines made."""
        y = x
        for layer in self.long:
            y = layer(y).tanh()
        z = self.first(x)
        late = z.view(-1) * 1.5
        z.mul_(2)
        for layer in self.other:
            z = layer(z).tanh()
        return y + z + late.sum()


def test_a_plan_in_its_own_order_has_a_tensor_read_before_it_is_changed() -> None:
    with sim.configured(clock="virtual", poison=False, operator_time="1ms"), torch.no_grad():
        model, x = made(Changes).eval().to("sim:0"), X.to("sim:0")
        placed = baechi.torch.place(
            model,
            x,
            CLUSTER,
            devices=DEVICES,
            costs="measure",
            optimizer="none",
            mode="streams+order",
        )
        plan = placed.plan
        assert plan is not None
        starts = dict(zip(plan.graph.names, plan.starts, strict=True))
        late = next(name for name in starts if name.startswith("mul@"))
        change = next(name for name in starts if name.startswith("mul_@"))
        assert starts[late] < starts[change]
        model(x)
        sim.reset_virtual_clock()
        model(x)
        taken = sim.virtual_time() * 1e3
        predicted = plan.makespan_ns / MILLISECOND
        placed.restore()
    assert predicted - 0.01 <= taken <= predicted + 2.01  # what is outside of the model's devices
