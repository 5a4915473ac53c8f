# SPDX-License-Identifier: Apache-2.0
"""One call from a model to a plan that runs, and what it says where that cannot be."""

from __future__ import annotations

import copy
import gc
from pathlib import Path
from typing import Any

import baechi.torch.sim as sim
import pytest
import torch
from baechi.torch.placing import place, plan
from baechi.torch.search import Search
from places import WIDTH, Branches, machine, placed_at_random, rows, virtual_ns
from torch import nn

import baechi

pytestmark = pytest.mark.filterwarnings("ignore")
CLOCK: dict[str, Any] = {"clock": "virtual", "operator_time": "20us", "memory_bandwidth": "1GB/s"}
LINK = "1us,10GB/s"


class Deep(nn.Module):
    """Two branches of four layers each, which two devices take half of the time for."""

    def __init__(self) -> None:
        super().__init__()

        def branch() -> nn.Module:
            layers = [layer for _ in range(4) for layer in (nn.Linear(WIDTH, WIDTH), nn.Tanh())]
            return nn.Sequential(*layers)

        self.left, self.right, self.last = branch(), branch(), nn.Linear(2 * WIDTH, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(torch.cat([self.left(x), self.right(x)], 1)).square().mean()


def test_measured_costs_have_what_asking_takes() -> None:
    """A host that needs 40 us for a call is what a step waits for."""
    slow: dict[str, Any] = {"host_call": "40us", "host_send": "50us"}
    link = sim.Link("1us", "10GB/s")
    with sim.configured(devices=2, memory="1GiB", asynchronous=False, link=link, **CLOCK, **slow):
        model, cluster = Deep().double(), baechi.Cluster("2x1GiB", link=LINK)
        how: dict[str, Any] = {"costs": "measure", "optimizer": "sgd", "budget": "200ms"}
        placed = place(model, rows(1), cluster, **how)
        assert placed.plan.cluster.host_time_ns == (40_000, 50_000, 0)
        x = rows(1).to("sim:0")
        taken = virtual_ns(lambda: (model.zero_grad(), model(x).backward()))
        assert taken == pytest.approx(placed.plan.makespan_ns, rel=0.03)
        placed.restore()
        baechi.torch.place(model, rows(1), cluster, plan=placed.plan).restore()
        known = baechi.Cluster("2x1GiB", link=LINK, host_time="1us,2us")
        with pytest.raises(baechi.InputError, match=r"^cluster: the plan was made for another"):
            baechi.torch.place(model, rows(1), known, plan=placed.plan)
        assert place(model, rows(1), known, **how).plan.cluster.host_time_ns == (1000, 2000, 0)
        beside = baechi.Cluster("1x1GiB+1xhost:1GiB", link=LINK)
        found = baechi.torch.plan(model, rows(1), beside, devices=["sim:0"], **how)
        assert found.cluster.host_time_ns == (40_000, 40_000, 0)  # copies as calls
        calls = sum(":" in name for name in found.graph.names)
        assert found.makespan_ns > 38_000 * calls  # some are of weights


def test_a_model_is_planned_and_runs_as_planned() -> None:
    torch.manual_seed(1)
    model = Deep().double()
    twin = copy.deepcopy(model)
    twin(rows(1)).backward()
    link = sim.Link("1us", "10GB/s")
    with sim.configured(devices=2, memory="1GiB", asynchronous=False, link=link, **CLOCK):
        cluster = baechi.Cluster("2x1GiB", link=LINK)
        placed = place(model, rows(1), cluster, costs="measure", optimizer="sgd", budget="200ms")
        x = rows(1).to("sim:0")
        taken = virtual_ns(lambda: (model.zero_grad(), model(x).backward()))
        assert torch.allclose(model(x).cpu(), twin(rows(1)))
        pairs = zip(model.parameters(), twin.parameters(), strict=True)
        assert all(torch.allclose(a.grad.cpu(), b.grad) for a, b in pairs)
        alone = baechi.place_graph(placed.plan.graph, "1x1GiB", "single").makespan_ns
        assert placed.plan.makespan_ns < 0.7 * alone
        assert taken < 0.75 * alone
        assert set(placed.weight_devices.values()) == {"gpu:0", "gpu:1"}
        assert " = send " in placed.program
        assert "Deep on 2 of 2 devices" in str(placed)
        assert placed.restore() is model
        assert {str(p.device) for p in model.parameters()} == {"cpu"}
        with pytest.raises(TypeError, match="call the model"):
            placed(x)


def test_a_plan_is_made_without_devices_and_weights_and_run_later(tmp_path: Path) -> None:
    with torch.device("meta"):
        empty = Deep().double()
    made = plan(empty, rows(1).to("meta"), "2x1GiB", optimizer="sgd", budget="50ms")
    made.save(tmp_path / "plan.json")
    again = baechi.Plan.load(tmp_path / "plan.json", made.graph)
    with sim.configured(devices=2, memory="1GiB", asynchronous=False):
        model = Deep().double()
        expected = copy.deepcopy(model)(rows(1))
        placed = place(model, rows(1), plan=again, optimizer="sgd")
        assert torch.allclose(model(rows(1).to("sim:0")).cpu(), expected)
        placed.restore()
        weights = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        late = place(empty, rows(1), plan=again, optimizer="sgd", weights=weights)
        assert torch.allclose(empty(rows(1).to("sim:0")).cpu(), expected)
        assert {p.device.type for p in empty.parameters()} == {"sim"}
        late.restore()


def test_stages_go_through_files_and_place_the_model(tmp_path: Path) -> None:
    with sim.configured(devices=2, memory="1GiB"):
        model, twin = Branches().double(), Branches().double()
        model.load_state_dict(twin.state_dict())
        step = baechi.torch.capture(model, rows(1))
        costs = baechi.torch.measure(model, rows(1), step, devices={"gpu": "sim:0"})
        assert costs.runs == len({*costs.times}) - 2  # and two that move bytes
        costs.save(tmp_path / "costs.json")
        known = baechi.torch.Costs.load(tmp_path / "costs.json")
        assert known.times == costs.times
        made = plan(model, rows(1), "2x1GiB", costs=known)
        made.save(tmp_path / "plan.json")
        again = baechi.Plan.load(tmp_path / "plan.json", made.graph)
        placed = place(model, rows(1), plan=again, costs=known)
        for each in (model, twin):
            each(rows(1)).mean().backward()
        for p, other in zip(model.parameters(), twin.parameters(), strict=True):
            torch.testing.assert_close(p.grad.cpu(), other.grad)
        placed.restore()


def test_costs_of_any_kind_are_measured_without_weights() -> None:
    with torch.device("meta"):
        empty = Branches().double()
    costs = baechi.torch.measure(empty, rows(1))
    assert {kind for times in costs.times.values() for kind in times} == {"*"}
    assert plan(empty, rows(1), "4xrtx3090", costs=costs).makespan_ns > 0
    again = baechi.torch.measure(empty, rows(1), known=costs)
    assert again.runs == 0


def test_a_step_without_gradients_is_a_forward() -> None:
    with torch.no_grad():
        step = baechi.torch.capture(Branches().double().eval(), rows(1))
    assert not step.is_training
    assert [one.kind for one in step.outputs] == ["output"]
    with pytest.raises(baechi.InputError, match="name one that can compute"):
        baechi.torch.measure(Branches().double(), rows(1), devices="meta")
    with pytest.raises(baechi.InputError, match="'cuda:9' is no device here"):
        baechi.torch.measure(Branches().double(), rows(1), devices={"gpu": "cuda:9"})


def test_verify_names_what_differs() -> None:
    with sim.configured(devices=2, memory="1GiB", asynchronous=False):
        model = Branches().double().eval()
        placed = place(model, rows(1), "2x1GiB", budget="50ms")
        model.requires_grad_()
        assert placed.verify(rows(1), loss=lambda out: out.sum())  # from the host, as calls are
        turn = [0]

        def wrong(_: nn.Module, __: Any, output: torch.Tensor) -> torch.Tensor:
            turn[0] += 1
            return output * (1 + 0.1 * (turn[0] > 1))

        handle = model.b.register_forward_hook(wrong)
        found = placed.verify(rows(1).to("sim:0"), loss=lambda out: out.sum())
        assert not found
        assert "is off by" in str(found)
        handle.remove()
        placed.restore()


def test_a_search_is_an_argument_of_its_own_and_takes_keywords_through() -> None:
    found = Search(method="m-etf", budget="10ms")
    made = plan(Branches(), rows(1).float(), "2x1GiB", search=found)
    assert made.method == "m-etf"
    again = plan(Branches(), rows(1).float(), "2x1GiB", search=found, method="single")
    assert again.method == "single"


def test_a_model_that_torch_compile_wrapped_is_the_model() -> None:
    with sim.configured(devices=2, memory="1GiB", asynchronous=False):
        model = Branches().double()
        wrapped = torch.compile(model, backend="eager")
        expected = copy.deepcopy(model)(rows(1))
        placed = place(wrapped, rows(1), "2x1GiB", budget="50ms")
        assert placed.model is model
        assert torch.allclose(model(rows(1).to("sim:0")).cpu(), expected)
        placed.restore()


def test_a_plan_has_room_for_what_an_optimizer_takes_of_all_weights_at_once() -> None:
    with sim.configured(devices=1, memory="1GiB", asynchronous=False):
        torch.manual_seed(1)
        model = nn.Sequential(*(nn.Linear(256, 256) for _ in range(4)), nn.Linear(256, 1))
        x = torch.randn(8, 256)
        gc.collect()  # what other tests left, and the most that they had
        sim.reset_peak_memory_stats(0)
        before = sim.memory_allocated(0)
        placed = place(model, x, "1x1GiB", optimizer="adam")
        optimizer = torch.optim.Adam(model.parameters())
        x = x.to("sim:0")
        for _ in range(2):
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
        measured = sim.max_memory_allocated(0) - before
        assert measured == pytest.approx(placed.peaks["gpu:0"], rel=0.03)
        placed.restore()


def test_averages_that_are_written_back_take_their_time_in_the_plan() -> None:
    with sim.configured(devices=1, memory="1GiB", asynchronous=False, **CLOCK):
        layers = [each for _ in range(4) for each in (nn.Linear(64, 64), nn.BatchNorm1d(64))]
        model, x = nn.Sequential(*layers), torch.randn(8, 64, device="sim:0")
        placed = place(model, x, "1x1GiB", costs="measure", optimizer="none")
        taken = virtual_ns(lambda: (model.zero_grad(), model(x).mean().backward()))
        assert taken == pytest.approx(placed.plan.makespan_ns, rel=0.03)
        placed.restore()


class Recurrent(nn.Module):
    """Cells over slices of a batch, one upon the other, with what the lower one says beside."""

    def __init__(self) -> None:
        super().__init__()
        self.cells = nn.ModuleList(nn.GRUCell(WIDTH, WIDTH) for _ in range(2))
        self.joins = nn.ModuleList(nn.Linear(2 * WIDTH, WIDTH) for _ in range(2))
        self.last = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for cell, join in zip(self.cells, self.joins, strict=True):
            state, states = x.new_zeros(len(x), WIDTH), []
            for step in range(x.shape[1]):
                state = cell(x[:, step], state)
                states.append(state)
            x = x + join(torch.cat([x, torch.stack(states, 1)], 2))
        return self.last(x).sum()


def test_every_call_that_runs_was_planned_and_the_forward_sends_what_the_backward_reads() -> None:
    model, batch = Recurrent().double(), torch.randn(4, 5, WIDTH, dtype=torch.double)
    with machine():
        placed = placed_at_random(model, batch, seed=2)
        placed.model(batch).backward()
        forward, backward = (text.splitlines() for text in placed.program.split("\n\n"))
        placed.restore()
    named = [line.rpartition("  # ")[2] for line in (*forward, *backward) if " = aten." in line]
    calls = {name for name in named if ":" in name}
    assert any("+:" in name for name in calls)
    assert calls <= set(placed.plan.device_of)
    given = {line.split()[1] for line in backward if line.startswith("input ")}
    sent = {line.split(" = send ")[1].split()[0] for line in backward if " = send " in line}
    assert any("@" in name for name in given)
    assert {name for name in sent if "tangents" not in name} & given == set()


@pytest.mark.parametrize("micro_batches", [None, 2])
def test_a_forward_that_a_class_is_given_later_is_what_runs(micro_batches: int | None) -> None:
    class Scale(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x)

    def twice(self: Scale, x: torch.Tensor) -> torch.Tensor:
        return 2 * nn.functional.linear(x, self.weight, self.bias)

    model, batch = nn.Sequential(Scale(WIDTH, WIDTH), nn.Linear(WIDTH, 1)), rows(1).float()
    with machine():
        model[1].bias.data.zero_()
        how = {"loss": torch.mean, "micro_batches": micro_batches}
        placed = placed_at_random(model, batch, **how)
        losses = []
        for forward in (Scale.forward, twice):
            Scale.forward = forward  # type: ignore[method-assign]
            found = placed.step(batch) if micro_batches else placed.model(batch).mean()
            losses.append(float(found))
        placed.restore()
    assert losses[1] == pytest.approx(2 * losses[0])


@pytest.mark.parametrize("changed", ["weight", "batch", "output"])
def test_what_is_changed_in_place_before_the_backward_is_pytorchs_error(changed: str) -> None:
    layers = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH), nn.Tanh()
    with machine():
        for seed in (1, 2, 3, 4):  # the backward reads the weight here at home, there elsewhere
            model, batch = copy.deepcopy(nn.Sequential(*layers)), rows(1).float().to("sim:0")
            placed = placed_at_random(model, batch, seed=seed)
            output = placed.model(batch)
            with torch.no_grad():
                {"weight": model[1].weight, "batch": batch, "output": output}[changed].mul_(2)
            with pytest.raises(RuntimeError, match="modified by an inplace operation"):
                output.sum().backward()
            placed.restore()
