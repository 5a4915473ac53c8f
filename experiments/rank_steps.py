# SPDX-License-Identifier: Apache-2.0
"""What every process does for ranks.py: torchrun ... -m experiments.rank_steps FILE.json."""

from __future__ import annotations

import copy
import gc
import json
import statistics
import sys
import time
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import baechi.torch
import torch
from baechi.torch.ranks.detected import cluster_over
from baechi.torch.ranks.processes import Processes
from torch import distributed, nn
from torch.distributed import pipelining

import baechi
from experiments.page import write_whole
from experiments.rank_models import MODELS, SAMPLES, WIDTH, Chain, Layer, Wide, loss_of

if TYPE_CHECKING:
    from collections.abc import Callable

STEPS = 5  # that count, behind two that do not
MICRO_BATCHES = (1, 4, 8)


def seconds_of(step: Callable[[], Any]) -> float:
    """Return the median time of a step that all ranks take together."""
    taken = []
    for number in range(STEPS + 2):
        distributed.barrier()
        begin = time.perf_counter()
        step()
        distributed.barrier()
        if number > 1:
            taken.append(time.perf_counter() - begin)
    return statistics.median(taken)


def batch() -> tuple[torch.Tensor, torch.Tensor]:
    """Return a mini-batch, the same one on every rank."""
    generator = torch.Generator().manual_seed(0)
    x, targets = (torch.randn(SAMPLES, WIDTH, generator=generator) for _ in range(2))
    return x, targets


def sums(mine: list[int]) -> list[int]:
    """Return the sums over all ranks."""
    line = torch.tensor(mine)
    distributed.all_reduce(line)
    return [int(each) for each in line]


def planned_bytes(plan: baechi.Plan) -> int:
    """Return what the plan sends between devices: each tensor once to a device that reads it."""
    arrays = baechi.graph_to_arrays(plan.graph)
    devices, producer = plan.devices, arrays["tensor_producer"]
    sent = {
        (int(t), devices[int(reader)])
        for t, reader in zip(arrays["edge_tensor"], arrays["edge_to"], strict=True)
        if devices[int(reader)] != devices[int(producer[t])]
    }
    return sum(int(arrays["tensor_bytes"][tensor]) for tensor, _ in sent)


def clock(layer: Layer, samples: int) -> tuple[int, int]:
    """Return what the forward and the backward of a layer take by the clock: medians."""
    taken: list[tuple[int, int]] = []
    for _ in range(STEPS + 2):
        x = torch.randn(samples, WIDTH, requires_grad=True)
        begin = time.perf_counter_ns()
        y = layer(x)
        between = time.perf_counter_ns()
        y.backward(torch.ones_like(y))
        taken.append((between - begin, time.perf_counter_ns() - between))
    forward, backward = zip(*taken[2:], strict=True)
    return round(statistics.median(forward)), round(statistics.median(backward))


def costs_of(name: str, samples: int, waits: bool) -> Any:
    """Return what operators take for so many samples: measured kernels, and waits by the clock.

    A wait takes longer than it is asked for, and what runs behind it finds cold caches.
    """
    if distributed.get_rank():
        return "estimate"  # rank 0 plans
    still: Any = MODELS[name](milliseconds=0.0)
    part, wanted = (tensor[:samples] for tensor in batch())
    measured = baechi.torch.measure(
        still,
        part,
        kind="cpu",
        units=[Layer],
        repeats=5,
        loss=lambda output: loss_of(output, wanted.to(output.device)),
        adding=True,
    )
    if waits:
        pairs = zip(clock(Layer(), samples), clock(Layer(milliseconds=0.0), samples), strict=True)
        forward, backward = (lasting - without for lasting, without in pairs)
        for key, cost in measured.ops.items():
            if "@" not in key and isinstance(still.get_submodule(key), Layer):
                cost.forward["cpu"] += forward
                cost.backward["cpu"] += backward
    return measured


def placed_step(
    name: str, micro_batches: int, *, waits: bool = True, replicas: int = 1
) -> dict[str, Any]:
    """Measure a step of a placed model."""
    torch.manual_seed(0)
    model = MODELS[name]() if waits else MODELS[name](milliseconds=0.0)
    x, targets = (tensor[: SAMPLES // replicas] for tensor in batch())  # of each replica
    loss: Any = loss_of
    placed = baechi.torch.place(
        model,
        x,
        "auto",
        loss=loss,
        targets=targets,
        micro_batches=micro_batches,
        units=[Layer],
        costs=costs_of(name, len(x) // micro_batches, waits),
        replicas=replicas,
        optimizer="none",
        verbose=False,
    )
    placed.step(x, targets)
    transport = placed._stepper.transport  # type: ignore[union-attr]
    before = [transport.messages, transport.bytes]
    measured = seconds_of(lambda: (placed.step(x, targets), model.zero_grad()))
    steps = STEPS + 2
    now = [transport.messages, transport.bytes]
    messages, sent = sums([(b - a) // steps for a, b in zip(before, now, strict=True)])
    plan = placed.plan
    assert plan is not None
    program = placed._stepper._known[-1].program  # type: ignore[union-attr]
    return {
        "workload": name,
        "micro_batches": micro_batches,
        "replicas": replicas,
        "predicted_ns": getattr(placed, "predicted_step_ns", None) or plan.makespan_ns,
        "measured_ns": round(measured * 1e9),
        "parts": len(program.order),
        "messages": messages,
        "bytes": sent,
        "planned_bytes": planned_bytes(plan),
    }


def talk() -> list[dict[str, Any]]:
    """Measure what ranks take for a message, and to agree on a step."""
    processes = Processes.on(torch.device("cpu"))
    cluster = cluster_over(processes)
    names = [device.name for device in cluster.devices]
    pairs = [(a, b) for a in names for b in names if a != b]
    rows = []
    for size, said in ((4, "4 bytes"), (1 << 20, "1 MiB")):
        each = [cluster.transfer_time(size, *pair) for pair in pairs]
        what = f"a message of {said}, one way between two ranks"
        rows.append({"what": what, "measured_ns": round(statistics.median(each))})
    facts = {"messages": "the same"}
    calls: dict[str, Callable[[], Any]] = {
        "all agree before a step": lambda: processes.agree("step", facts, facts),
        "all tell each other how it ended": lambda: processes.ended(
            0, torch.zeros(()), None, lambda _: ""
        ),
    }
    nothing = seconds_of(lambda: None)
    for what, call in calls.items():
        took = max(0.0, seconds_of(call) - nothing)
        rows.append({"what": what, "measured_ns": round(took * 1e9)})
    return rows


def torch_step(name: str, micro_batches: int, schedule: str) -> dict[str, Any]:
    """Measure a step of the same model under a schedule of torch.distributed.pipelining."""
    rank, count = distributed.get_rank(), distributed.get_world_size()
    torch.manual_seed(0)
    model = MODELS[name]()
    x, targets = batch()
    cpu = torch.device("cpu")
    kind = getattr(pipelining, schedule)
    if schedule == "ScheduleZBVZeroBubble":
        parts = model.stages(2 * count)
        own = (rank, 2 * count - 1 - rank)
        stages = [pipelining.PipelineStage(parts[i], i, 2 * count, cpu) for i in own]
        runner = kind(stages, micro_batches, loss_of)
        first, last = rank == 0, rank == 0
    else:
        parts = model.stages(count)
        stage = pipelining.PipelineStage(parts[rank], rank, count, cpu)
        runner = kind(stage, micro_batches, loss_of)
        first, last = rank == 0, rank == count - 1

    def step() -> None:
        given = (x,) if first else ()
        runner.step(*given, **({"target": targets, "losses": []} if last else {}))
        model.zero_grad()

    measured = seconds_of(step)
    return {
        "workload": name,
        "micro_batches": micro_batches,
        "schedule": schedule,
        "measured_ns": round(measured * 1e9),
    }


def resident(what: str) -> int:
    """Return bytes of this process: VmRSS now, VmHWM at most."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(what))


def memory(deferred: bool) -> dict[str, Any]:
    """Measure what this process holds of a model that is mostly weights."""
    x = torch.randn(4, 1024)
    gc.collect()  # what was measured before
    Path("/proc/self/clear_refs").write_text("5")  # the most begins anew
    before = resident("VmRSS")
    if deferred:
        with baechi.torch.deferred_weights():
            model: nn.Module = Wide()
    else:
        model = Wide()
    count = distributed.get_world_size()
    placed = baechi.torch.place(
        model,
        x,
        f"{count}x4GiB",
        devices=["cpu"] * count,
        loss=lambda output: output.square().mean(),
        micro_batches=2,
        method="random",
        bounds=False,
        verbose=False,
    )
    most = resident("VmHWM") - before
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
    for _ in range(2):
        placed.step(x)
        optimizer.step()
    plan = placed.plan
    assert plan is not None
    device = plan.cluster.devices[placed.rank].name
    own = [w.nbytes for n, w in model.named_parameters() if placed.weight_devices[n] == device]
    return {
        "rank": placed.rank,
        "deferred": "deferred" if deferred else "as usual",
        "own_bytes": sum(own),
        "placing_bytes": most,
        "training_bytes": resident("VmRSS") - before,
        "predicted_bytes": plan.peaks[device],
    }


def main(path: Path) -> None:
    """Run all; rank 0 leaves what was found in a file."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    distributed.init_process_group("gloo")
    torch.manual_seed(0)
    memory(True)  # what is loaded once is no part of a measurement
    held = [memory(deferred) for deferred in (True, False)]
    ours = [placed_step(name, m) for name in MODELS for m in MICRO_BATCHES]
    idle = [placed_step(name, m, waits=False) for name in MODELS for m in (1, 8)]
    copies = [placed_step(name, 4, replicas=2) for name in MODELS]
    told = talk()
    theirs = []
    for name, model in MODELS.items():
        for m in MICRO_BATCHES:
            schedules = ["ScheduleGPipe", "Schedule1F1B"] if m >= 4 else ["ScheduleGPipe"]
            if model is Chain and m >= 8:
                schedules.append("ScheduleZBVZeroBubble")
            theirs += [torch_step(name, m, schedule) for schedule in schedules]
    everyone: list[Any] = [None] * distributed.get_world_size()
    distributed.all_gather_object(everyone, held)
    if distributed.get_rank() == 0:
        rows = [copy.deepcopy(row) for each in everyone for row in each]
        rows.sort(key=lambda row: (row["deferred"], row["rank"]))
        found = {"ours": ours, "idle": idle, "replicas": copies, "talk": told, "torch": theirs}
        write_whole(path, json.dumps({**found, "memory": rows}))
    distributed.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
