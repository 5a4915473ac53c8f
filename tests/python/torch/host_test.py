# SPDX-License-Identifier: Apache-2.0
"""One accelerator and the CPU as the devices of a cluster: losses, memory, copies, verification."""

from __future__ import annotations

import gc
import itertools
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("torch")

import baechi.torch
import torch
from baechi.torch.cost.profiler import estimate
from baechi.torch.memory.eager import StepContext, held_bytes, peak_memory
from baechi.torch.memory.fit import GraphStep, Memory
from baechi.torch.placing import assign
from baechi.torch.trace.exported import export
from torch import nn
from torch_models import CASES, built
from training_steps import close, train

import baechi

sim: Any = pytest.importorskip("baechi.torch.sim")

LINE = "1xgpu:1GiB+1xcpu:1GiB"


@pytest.fixture(autouse=True)
def machine() -> Iterator[None]:
    """One device that works on its own."""
    gc.collect()
    with sim.configured(devices=1, poison=True, memory="1GiB"):
        yield


def test_the_cpu_is_where_its_kind_says() -> None:
    placed = baechi.torch.place(
        nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8)), torch.ones(2, 8), LINE, bounds=False
    )
    where = [str(device.torch_device) for device in placed._assigner.devices]
    assert where == ["sim:0", "cpu"]
    placed.restore()
    with pytest.raises(baechi.InputError, match="has 3 accelerators and this machine 1"):
        baechi.torch.place(nn.Linear(8, 8), torch.ones(2, 8), f"2xgpu:1GiB+{LINE}", bounds=False)


@pytest.mark.parametrize(("short", "full"), [("sim", "sim:0"), ("cpu:0", "cpu")])
def test_peaks_are_the_same_however_a_device_is_called(short: str, full: str) -> None:
    model, x = nn.Linear(64, 64), torch.ones(64, 64, device=full)
    peaks = []
    for name in (short, full):
        placed = baechi.torch.place(model, x, "1x1GiB", devices=[name], bounds=False)
        peaks.append(placed.peaks)
        placed.restore()
    assert peaks[0] == peaks[1]


@pytest.mark.repeats
@pytest.mark.parametrize("name", ["resnet", "lstm", "transformer"])
@pytest.mark.parametrize("mode", ["plain", "streams", "streams+order"])
def test_losses_are_those_of_one_device_and_all_is_verified(name: str, mode: str) -> None:
    case = CASES[name]
    batches = [case.inputs(n) for n in (2, 3)]
    expected = train(built(case), batches)
    shared = ("1xgpu:1GiB+1xgpu:1GiB+1xcpu:1GiB", ["sim:0", "sim:0", "cpu"])
    tiers: tuple[Any, ...] = ("auto",) if mode == "streams+order" else (1, "auto")
    for tier, (line, devices) in zip(tiers, ((LINE, None), shared), strict=False):
        placed = baechi.torch.place(
            built(case),
            case.inputs(2),
            line,
            devices=devices,
            method="random",
            seed=3,
            bounds=False,
            mode=mode,
            tier=tier,
        )
        close(expected, train(placed.model, batches))
        assert placed.tier == (2 if tier == "auto" else 1)
        assert placed.transfers > 0
        verification = placed.verify(case.inputs(2))
        assert verification, str(verification)
        assert {p.device.type for p in placed.restore().parameters()} == {"cpu"}


def blocks(width: int = 512, count: int = 8) -> nn.Module:
    torch.manual_seed(4)
    layers = [(nn.Linear(width, width), nn.ReLU()) for _ in range(count)]
    return nn.Sequential(*itertools.chain(*layers))


@pytest.mark.parametrize("tier", [1, 2])
def test_a_model_too_large_for_the_accelerator_trains_with_a_part_on_the_cpu(tier: int) -> None:
    inputs = torch.randn(256, 512)
    captured = baechi.torch.capture(blocks(), inputs)
    need = peak_memory(captured, {op.key: "all" for op in captured.ops}, optimizer="adam")["all"]
    cap = need // 2
    sim.configure(memory=cap, asynchronous=False)
    alone = blocks().to("sim:0")
    with pytest.raises(torch.OutOfMemoryError):
        train(alone, [inputs.to("sim:0")] * 2)
    del alone
    gc.collect()
    expected = train(blocks(), [inputs] * 4)
    model = blocks()
    placed = baechi.torch.place(
        model,
        inputs,
        f"1xgpu:{cap}B+1xcpu:1GiB",
        costs=costs_of_two_kinds(captured),
        tier=tier,
        gradients="freed",
        bounds=False,
    )
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    sim.reset_peak_memory_stats(0)
    close(expected, train(model, [inputs] * 4, optimizer))
    assert {p.device.type for p in model.parameters()} == {"cpu", "sim"}
    measured = sim.max_memory_allocated(0)
    assert 0.97 * measured <= placed.peaks["gpu:0"] <= 1.1 * measured
    assert 0.5 * cap < measured <= cap  # the faster device is used


def costs_of_two_kinds(captured: Any) -> Any:
    """A CPU that takes ten times as long as a plain accelerator."""
    costs = estimate(captured, {"gpu": "rtx2080"})
    for cost in costs.ops.values():
        cost.forward["cpu"] = 10 * cost.forward["gpu"]
        cost.backward["cpu"] = 10 * cost.backward["gpu"]
    return costs


def test_in_a_graph_copies_to_the_cpu_wait_until_they_are_read() -> None:
    """A copy from or to the CPU holds up the host: what can be started before it has to be."""

    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.long, self.last = (nn.Linear(64, 64) for _ in range(3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.first(x)
            y = self.long(x)
            return self.last(x) + y.cpu() if x.is_cpu else self.last(x) + y

    model, inputs = Two(), torch.ones(4, 64)
    captured = baechi.torch.capture(model, inputs)
    device_of = {op.key: "gpu:0" for op in captured.ops} | {"last": "cpu:0"}
    placed = assign(model, captured, device_of, {"gpu:0": "sim:0", "cpu:0": "cpu"}, tier=2)
    with torch.no_grad():
        placed.model(inputs)
    graphs = placed._assigner.graphs
    assert graphs is not None
    program: Any
    (program,) = [g.program for known in graphs._known.values() for g in known]
    lines = program.source.splitlines()
    sent = next(i for i, line in enumerate(lines) if "send" in line)
    calls = [i for i, line in enumerate(lines) if "call" in line]
    assert sum(i < sent for i in calls) == 2, program.source  # `first` and `long`
    placed.restore()


def test_logical_devices_that_share_a_memory_have_one_peak() -> None:
    sim.configure(asynchronous=False)
    model, inputs = blocks().to("sim:0"), torch.randn(64, 512, device="sim:0")
    captured = baechi.torch.capture(model, inputs)
    device_of = {op.key: f"gpu:{i // 4 % 2}" for i, op in enumerate(captured.ops)}
    memory_of = {"gpu:0": "sim:0", "gpu:1": "sim:0"}

    def record(units: Any) -> Any:
        return baechi.torch.capture(model, inputs, units=units)

    for tier in (1, 2):
        memory = Memory(model, captured, list(memory_of), (tier,), StepContext("none"))
        if tier == 2:
            graph = export(model, inputs)
            shared = [torch.device("sim:0")] * 2
            memory.graph = GraphStep(graph, "streams", shared, record)
        own = {name: peak.bytes for name, peak in memory.peaks(device_of)[tier].items()}
        memory.around = StepContext("none", "gpu:0", held_bytes([inputs]), memory_of=memory_of)
        together = {name: peak.bytes for name, peak in memory.peaks(device_of)[tier].items()}
        assert max(own.values()) < together["sim:0"] <= sum(own.values())
        placed = assign(model, captured, device_of, memory_of, tier=tier)
        for _ in range(2):
            model.zero_grad()
            sim.reset_peak_memory_stats(0)
            model(inputs).sum().backward()
        measured = sim.max_memory_allocated(0)
        assert 0.97 * measured <= together["sim:0"] <= 1.1 * measured
        placed.restore()
