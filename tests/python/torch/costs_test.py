# SPDX-License-Identifier: Apache-2.0
"""The recorded graph and what its operators cost."""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

import baechi.torch
import torch
from baechi.torch.base import _private, versions
from baechi.torch.base.nested import map_tensors
from baechi.torch.cost import profiler
from baechi.torch.cost.graph_generator import graph_of
from baechi.torch.cost.profiler import estimate
from baechi.torch.record.capture import call_arguments, record_step, sum_of
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch_models import CASES, built

import baechi

FLOAT = 4


class Chain(nn.Module):
    """Linear -> ReLU in place -> Linear, with known sizes."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(256, 512, bias=False)
        self.relu = nn.ReLU(inplace=True)
        self.second = nn.Linear(512, 128, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.relu(self.first(x)))


def chain() -> tuple[Any, Any]:
    return Chain(), baechi.torch.capture(Chain(), torch.randn(64, 256))


def test_graphs_mark_what_a_second_run_would_not_make_again() -> None:
    model = nn.Sequential(
        nn.Linear(8, 8), nn.Dropout(0.5), nn.BatchNorm1d(8), nn.ReLU(inplace=True), nn.Linear(8, 4)
    )
    captured = baechi.torch.capture(model, torch.randn(4, 8))
    graph = graph_of(captured, estimate(captured, {"gpu": "a100"})).graph
    marked = {graph[name].kind for name in graph.names if not graph[name].recompute}
    assert marked == {"Dropout", "BatchNorm1d", "ReLU", "Linear", "sum"}  # returned, and the loss
    assert graph["0"].recompute
    assert not graph["4"].recompute


def test_private_names_of_this_torch_are_as_expected() -> None:
    assert versions.self_test() == []


@pytest.fixture
def newer(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Make this PyTorch newer than all that were tested."""
    monkeypatch.setattr(versions, "FIRST_TESTED", (1, 0))
    monkeypatch.setattr(versions, "LAST_TESTED", (1, 1))
    versions.check_version.cache_clear()
    yield
    versions.check_version.cache_clear()


def test_a_newer_torch_that_does_what_we_need_is_used_without_a_word(newer: None) -> None:
    del newer
    state = torch.get_rng_state()
    with warnings.catch_warnings(), torch.inference_mode():
        warnings.simplefilter("error")
        versions.check_version()
    assert torch.equal(torch.get_rng_state(), state)


def test_what_a_newer_torch_does_not_do_is_named_once(
    newer: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    del newer
    monkeypatch.setattr(_private, "version_of", lambda _: 0)
    with pytest.warns(UserWarning, match=r"tested with PyTorch 1.0 to 1.1; in .* in-place change"):
        chain()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        chain()


def test_flops_and_memory_parts_of_a_chain() -> None:
    _, captured = chain()
    by_key = {op.key: op for op in captured.ops}
    assert by_key["first"].forward.flops == 2 * 64 * 256 * 512
    assert by_key["first"].backward.flops == 2 * 64 * 256 * 512  # the input needs no gradient
    assert by_key["second"].backward.flops == 2 * 2 * 64 * 512 * 128
    costs = estimate(captured, {"gpu": "rtx2080"}).ops
    assert costs["first"].parameters == costs["first"].gradients == 256 * 512 * FLOAT
    assert costs["first"].saved + costs["first"].outputs == 64 * 512 * FLOAT
    assert costs["relu"].outputs == costs["relu"].saved == 0  # in place: (b) is none
    assert costs["second"].outputs == 64 * 128 * FLOAT


def test_graph_pairs_forward_and_backward_and_holds_what_is_saved() -> None:
    _, captured = chain()
    costs = estimate(captured, {"gpu": "rtx2080"})
    graph = graph_of(captured, costs, optimizer="adam").graph
    assert graph["first:backward"].forward == "first"
    assert graph["first"].permanent == 3 * 256 * 512 * FLOAT  # weights and two moments
    # The storage that ReLU changes is read by it, by the next layer, and by both backwards.
    assert {("first", 0)} <= set(graph["relu"].inputs)
    assert {("first", 0)} <= set(graph["relu:backward"].inputs)
    assert {("first", 0)} <= set(graph["second:backward"].inputs)
    assert graph["second"].after == ["relu"]
    plan = baechi.place_graph(graph, "2x1GiB", method="random", seed=3)
    device_of = plan.device_of
    assert device_of["first"] == device_of["relu"] == device_of["first:backward"]
    assert baechi.verify(plan) == []


def test_tied_weights_and_repeated_calls_share_a_device() -> None:
    case = CASES["lstm"]
    captured = baechi.torch.capture(built(case), case.inputs(2))
    graph = graph_of(captured, estimate(captured, {"gpu": "t4"})).graph
    for seed in range(1, 4):
        device_of = baechi.place_graph(graph, "4x1GiB", method="random", seed=seed).device_of
        assert device_of["embedding"] == device_of["output"] == device_of["output#3"]
        assert len({device_of[f"cells.0{call}"] for call in ("", "#1", "#2", "#3")}) == 1
    assert sum(graph[n].permanent > 0 for n in ("embedding", "output", "output#1")) == 1


def test_costs_are_saved_and_reloaded(tmp_path: Path) -> None:
    _, captured = chain()
    costs = estimate(captured, baechi.Cluster("1xa100+1xt4"))
    assert set(costs.ops["first"].forward) == {"a100", "t4"}
    costs.save(tmp_path / "costs.json")
    assert baechi.torch.Costs.load(tmp_path / "costs.json") == costs
    (tmp_path / "bad.json").write_text("{}")
    with pytest.raises(baechi.InputError, match=r"bad\.json"):
        baechi.torch.Costs.load(tmp_path / "bad.json")


@pytest.mark.usefixtures("sim")  # one thread, whose processor time is measured
def test_measured_costs_rank_operators_like_their_work_and_leave_no_trace() -> None:
    class Uneven(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.BatchNorm1d(16)
            self.small = nn.Linear(16, 16)
            self.large = nn.Linear(16, 4096)
            self.back = nn.Linear(4096, 16)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.back(self.large(self.small(self.norm(x))))

    model, inputs = Uneven(), torch.randn(512, 16)
    before = {name: t.clone() for name, t in model.state_dict().items()}
    captured = baechi.torch.capture(model, inputs)
    costs = baechi.torch.measure(model, inputs, captured, repeats=5)
    assert costs.source == "measured"
    assert costs.ops["large"].forward["*"] > 3 * costs.ops["small"].forward["*"] > 0
    assert costs.ops["back"].backward["*"] > 0
    assert all(torch.equal(t, before[name]) for name, t in model.state_dict().items())
    assert all(p.grad is None for p in model.parameters())
    placed = baechi.torch.place(model, inputs, "2x1GiB", costs=costs, devices=["cpu"] * 2)
    assert placed.plan is not None
    placed.restore()


@pytest.mark.parametrize("name", ["resnet", "inception", "lstm", "transformer"])
def test_measured_costs_add_up_to_the_step(sim: Any, name: str) -> None:
    """Sums of gradients, weights used in every step and views are in the costs, too."""
    case = CASES[name]
    sim.configure(clock="virtual", operator_time="50us", memory_bandwidth="1GB/s")
    model, inputs = built(case).to("sim:0"), map_tensors(lambda t: t.to("sim:0"), case.inputs(2))
    captured = baechi.torch.capture(model, inputs)
    costs = baechi.torch.measure(model, inputs, captured, repeats=1, warm_up=0)
    args, kwargs = call_arguments(inputs)
    torch.accelerator.synchronize()
    sim.reset_virtual_clock()
    sum_of(model(*args, **kwargs)).backward()
    step = sim.virtual_time()
    found = sum(sum(c.forward.values()) + sum(c.backward.values()) for c in costs.ops.values())
    first_gradient = 51e-6  # backward() makes a one, which is no operator's
    assert step - first_gradient <= found / 1e9 <= step


def test_medians_are_over_the_steps_after_the_warm_up(monkeypatch: pytest.MonkeyPatch) -> None:
    model, inputs = Chain(), torch.randn(64, 256)
    captured = baechi.torch.capture(model, inputs)
    steps: Iterator[int] = iter([])

    class Scripted:
        """A clock on which every kernel of a step takes as long as the script says."""

        now = 0
        calls = 0

        def __init__(self, device: Any) -> None:
            pass

        def measure(self, call: Any) -> tuple[Any, Any]:
            Scripted.calls += 1
            now = Scripted.now
            return call(), lambda: now

        def wait(self) -> None:
            pass

    def stepped(*arguments: Any) -> Any:
        Scripted.now = next(steps)
        return record_step(*arguments)

    monkeypatch.setattr(profiler, "Clock", Scripted)
    monkeypatch.setattr(profiler, "record_step", stepped)
    steps = iter([10**9, 10**8, 7, 1, 10**7, 3, 5])
    costs = baechi.torch.measure(model, inputs, captured, repeats=5, warm_up=2).ops
    assert costs["first"].forward["*"] == 5
    assert costs["second"].backward["*"] == 2 * 5  # two matrix products
    steps = iter([2] * 22)
    assert baechi.torch.measure(model, inputs, captured).ops["first"].forward["*"] == 2
    assert next(steps, None) is None  # 20 steps after two


def test_inference_has_no_backward_and_is_measured_by_the_events_of_a_device(
    sim: Any, tmp_path: Path
) -> None:
    sim.configure(clock="virtual", operator_time="10us")
    model = Chain().to("sim:0").eval()
    inputs = torch.randn(64, 256, device="sim:0")
    captured = baechi.torch.capture(model, inputs)
    costs = baechi.torch.measure(model, inputs, captured, kind="gpu")
    assert {key: cost.forward["gpu"] for key, cost in costs.ops.items()} == dict.fromkeys(
        ("first", "relu", "second"), 10_000
    )
    assert all(cost.backward["gpu"] == cost.gradients == 0 for cost in costs.ops.values())
    costs.save(tmp_path / "costs.json")
    assert baechi.torch.Costs.load(tmp_path / "costs.json") == costs
    graph = graph_of(captured, costs, optimizer="adam").graph
    assert not any(name.endswith(":backward") for name in graph.names)
    assert graph["first"].permanent == 256 * 512 * FLOAT  # no gradient, no moments
    plan = baechi.place_graph(graph, "2x1GiB", bounds=False)
    assert plan.makespan_ns == 30_000


def test_real_events_tell_long_kernels_from_short_ones(sim: Any) -> None:
    sim.configure(clock="real", asynchronous=True, operator_time="1ms")
    model, inputs = Chain().to("sim:0"), torch.randn(64, 256, device="sim:0")
    captured = baechi.torch.capture(model, inputs)
    costs = baechi.torch.measure(model, inputs, captured, repeats=3).ops
    assert 10**6 <= costs["first"].forward["*"] < 50 * 10**6
    assert costs["second"].backward["*"] >= 2 * 10**6


def test_what_the_host_takes_to_start_a_kernel_is_not_its_time(
    sim: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    sim.configure(clock="real", asynchronous=True)
    slow = 20e-3
    dispatched = torch.ops.aten.mm.default

    class SlowHost(profiler.Clock):
        """A host that takes its time to start a kernel, and keeps the device busy for longer."""

        def measure(self, call: Any) -> tuple[Any, Any]:
            def late() -> Any:
                time.sleep(slow)
                return call()

            return super().measure(late if call.func is dispatched else call)

    model, inputs = Chain().to("sim:0"), torch.randn(64, 256, device="sim:0")
    captured = baechi.torch.capture(model, inputs)
    monkeypatch.setattr(profiler, "Clock", SlowHost)
    monkeypatch.setattr(profiler, "_BUSY", 4 * slow)
    costs = baechi.torch.measure(model, inputs, captured, repeats=3, warm_up=1).ops
    assert costs["first"].forward["*"] < slow * 1e9 / 2


def test_a_cluster_of_two_kinds_is_measured_on_both(sim: Any) -> None:
    sim.configure(clock="virtual", operator_time="3ms", devices=1)
    model, inputs = Chain(), torch.randn(64, 256)
    placed = baechi.torch.place(
        model, inputs, "1xgpu:1GiB+1xcpu:1GiB", costs="measure", method="random", bounds=False
    )
    assert placed.plan is not None
    times = placed.plan.graph["first"].times
    assert times["gpu"] == 3_000_000
    assert 0 < times["cpu"] != 3_000_000
    assert {p.device.type for p in placed.restore().parameters()} == {"cpu"}


def test_a_model_that_does_not_fit_is_measured_elsewhere_or_not_at_all(sim: Any) -> None:
    sim.configure(memory="512KiB", devices=1)
    model, inputs = Chain(), torch.randn(64, 256)
    captured = baechi.torch.capture(model, inputs)
    device, cpu = torch.device("sim:0"), torch.device("cpu")
    with pytest.warns(UserWarning, match="does not fit on sim:0 as a whole"):
        costs = profiler.measure_on({"gpu": device}, model, inputs, captured, repeats=1)
    assert costs.ops["first"].forward["gpu"] > 0
    with pytest.raises(baechi.InputError, match="Chain does not fit on sim:0 as a whole"):
        profiler.measure_on({"gpu": device, "cpu": cpu}, model, inputs, captured, repeats=1)
    assert {p.device.type for p in model.parameters()} == {"cpu"}
    assert sim.memory_allocated(0) == 0


def test_the_generators_of_devices_are_as_before(sim: Any) -> None:
    sim.configure(devices=2)
    model = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5)).to("sim:1")
    inputs = torch.randn(4, 8, device="sim:1")
    torch.manual_seed(3)
    expected = torch.rand(5, device="sim:1").cpu()
    torch.manual_seed(3)
    captured = baechi.torch.capture(model, inputs)
    baechi.torch.measure(model, inputs, captured, repeats=1, warm_up=0)
    assert torch.equal(torch.rand(5, device="sim:1").cpu(), expected)


@pytest.mark.parametrize("without_memory", [lambda: torch.device("meta"), FakeTensorMode])
def test_a_model_larger_than_the_memory_is_planned(without_memory: Any) -> None:
    with without_memory():
        model = nn.Sequential(*(nn.Linear(60_000, 60_000, bias=False) for _ in range(4)))
        captured = baechi.torch.capture(model, torch.empty(8, 60_000))
    costs = estimate(captured, {"gpu": "h200"})
    assert sum(cost.parameters for cost in costs.ops.values()) == 4 * 60_000**2 * FLOAT
    graph = graph_of(captured, costs, optimizer="sgd").graph
    plan = baechi.place_graph(graph, "4x40GiB")
    assert len(set(plan.device_of.values())) == 4


def test_presets_are_named_when_a_kind_has_none() -> None:
    _, captured = chain()
    with pytest.raises(baechi.InputError, match="no preset stands for devices of kind 'tpu'"):
        estimate(captured, baechi.Cluster("2xtpu:8GiB"))
