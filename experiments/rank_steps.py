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
from collections.abc import Callable
from pathlib import Path
from typing import Any

import baechi.torch
import torch
from baechi.torch.ranks.processes import Processes
from baechi.torch.ranks.steps import RankSteps
from baechi.torch.ranks.times import message_time, with_times
from safetensors.torch import save_file
from torch import distributed, nn
from torch.distributed import pipelining

import baechi
from experiments.page import write_whole
from experiments.rank_models import FORWARD, MODELS, SAMPLES, WIDTH, Chain, Wide, loss_of

_LARGE = 4 << 20  # bytes of a message
STEPS = 5  # that count, behind two that do not
MICRO_BATCHES = (1, 2, 4, 8)
LONG = 4  # times as long do layers wait in the rows of long kernels


def seconds_of(step: Callable[[], Any]) -> float:
    """Return the median time of a step that all ranks take together."""
    return times_of(step)[0]


def times_of(step: Callable[[], Any]) -> tuple[float, float]:
    """Return that, and the median of the processor time that all of them take for it.

    Steps follow each other as in training; each lasts from the end of the one before.
    """
    taken, computed = [], []
    distributed.barrier()
    begin = time.perf_counter()
    for _ in range(STEPS + 2):
        computing = time.process_time()
        step()
        computed.append(round((time.process_time() - computing) * 1e9))
        begin, before = time.perf_counter(), begin
        taken.append(begin - before)
    return statistics.median(taken[2:]), statistics.median(sums(computed)[2:]) / 1e9


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


def link() -> baechi.Cluster:
    """Return all ranks as a cluster, with the link that rank 0 and rank 1 measure by messages."""
    taken = [_there_and_back(size) / 2 for size in (4, _LARGE)]
    box = [taken]
    distributed.broadcast_object_list(box, 0)
    small, large = box[0]
    bandwidth = round((_LARGE - 4) / max(large - small, 1e-9))
    count = distributed.get_world_size()
    return baechi.Cluster(f"{count}x1GiB", link=f"{round(small * 1e9)}ns,{bandwidth}B/s")


def _there_and_back(size: int) -> float:
    """Return the median of seconds that a message takes from rank 0 to rank 1 and back."""
    there, rank, taken = torch.zeros(size, dtype=torch.uint8), distributed.get_rank(), [1.0]
    for _ in range(40 if rank < 2 else 0):
        begin = time.perf_counter()
        for sender in (0, 1):
            if rank == sender:
                distributed.send(there, 1 - rank)
            else:
                distributed.recv(there, 1 - rank)
        taken.append(time.perf_counter() - begin)
    distributed.barrier()
    return statistics.median(taken)


def costs_of(model: nn.Module, samples: int) -> Any:
    """Return what calls take for so many samples: measured kernels, and waits as they last."""
    if distributed.get_rank():
        return "estimate"  # rank 0 plans
    x, targets = (tensor[:samples] for tensor in batch())
    costs = baechi.torch.measure(model, x, loss=loss_of, targets=targets)
    late = _late()
    for signature, times in costs.times.items():
        if "wait" in signature:
            milliseconds = float(signature.rpartition(", ")[2].rstrip(")"))
            times["*"] += round(milliseconds * samples * 1e6 + late * 1e9)
    return costs


def _late() -> float:
    """Return the median of seconds by which this machine ends a wait too late."""
    taken = []
    for _ in range(40):
        begin = time.perf_counter()
        time.sleep(FORWARD / 1e3)
        taken.append(time.perf_counter() - begin - FORWARD / 1e3)
    return statistics.median(taken)


def placed_step(
    name: str,
    micro_batches: int,
    cluster: baechi.Cluster,
    processes: Processes,
    *,
    wait: float = FORWARD,
    replicas: int = 1,
) -> dict[str, Any]:
    """Measure a step of a placed model, whose layers wait so many milliseconds."""
    torch.manual_seed(0)
    model = MODELS[name](milliseconds=wait)
    x, targets = batch()
    placed = baechi.torch.place(
        model,
        x,
        with_times(cluster, processes, micro_batches // replicas),
        loss=loss_of,
        targets=targets,
        micro_batches=micro_batches,
        costs=costs_of(model, SAMPLES // micro_batches),
        optimizer=None,
        granularity="module",
        budget="2s",
        replicas=replicas,
        verbose=False,
    )
    placed.step(x, targets)
    measured, computed = times_of(lambda: (placed.step(x, targets), model.zero_grad()))
    assert isinstance(placed._steps, RankSteps)
    programs = placed._steps.last
    own = [m for p in programs for m in p.transport.messages if m.source == placed.rank]
    messages, sent = sums([len(own), sum(message.bytes for message in own)])
    plan = placed.plan
    assert plan.replicas == replicas
    return {
        "processes": distributed.get_world_size(),
        "replicas": replicas,
        "workload": name,
        "wait_ms": round(wait),
        "micro_batches": micro_batches,
        "predicted_ns": plan.makespan_ns,
        "measured_ns": round(measured * 1e9),
        "computed_ns": round(computed * 1e9),
        "messages": messages,
        "bytes": sent,
        "planned_bytes": planned_bytes(plan),
    }


def talk(cluster: baechi.Cluster, processes: Processes) -> list[dict[str, Any]]:
    """Measure what ranks take for a message, and to agree on a step."""
    first, second = (device.name for device in cluster.devices[:2])
    rows = []
    for size, said in ((4, "4 bytes"), (1 << 20, "1 MiB")):
        what = f"a message of {said}, one way between two ranks"
        took: float = cluster.transfer_time(size, first, second)
        rows.append({"what": what, "measured_ns": round(took)})
    for what, thread in zip(("sender", "receiver"), message_time(processes), strict=True):
        rows.append({"what": f"that, of its {what}'s thread", "measured_ns": round(thread * 1e9)})
    calls: dict[str, Callable[[], Any]] = {
        "all agree before a step": lambda: processes.agree("step", {"messages": "the same"}, None),
        "all tell each other how it ended": lambda: processes.agree("step", {}, None, [0.0]),
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


def memory(weights: Path | None) -> dict[str, Any]:
    """Measure what this process holds of a model that is mostly weights, perhaps of a file."""
    x = torch.randn(4, 1024)
    gc.collect()  # what was measured before
    Path("/proc/self/clear_refs").write_text("5")  # the most begins anew
    before = resident("VmRSS")
    with torch.device("cpu" if weights is None else "meta"):
        model: nn.Module = Wide()
    count = distributed.get_world_size()
    placed = baechi.torch.place(
        model,
        x,
        f"{count}x4GiB",
        devices=["cpu"] * count,
        loss=lambda output: output.square().mean(),
        micro_batches=2,
        weights=weights,
        method="random",
        granularity="module",
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
        "built": "as usual" if weights is None else "on the meta device",
        "own_bytes": sum(own),
        "placing_bytes": most,
        "training_bytes": resident("VmRSS") - before,
        "predicted_bytes": plan.peaks[device],
    }


def beside_plans(cluster: baechi.Cluster, processes: Processes) -> list[dict[str, Any]]:
    """Measure steps, of long kernels and of two replicas, too."""
    rows = [placed_step(name, m, cluster, processes) for name in MODELS for m in MICRO_BATCHES]
    rows += [placed_step(name, 8, cluster, processes, replicas=2) for name in MODELS]
    for replicas in (1, 2):
        how: Any = {"wait": LONG * FORWARD, "replicas": replicas}
        rows += [placed_step(name, 8, cluster, processes, **how) for name in MODELS]
    return rows


def main(path: Path) -> None:
    """Run all, or plans beside steps alone; rank 0 leaves what was found in a file."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    distributed.init_process_group("gloo")
    if distributed.get_world_size() == 2:
        rows = beside_plans(link(), Processes(torch.device("cpu")))
        if distributed.get_rank() == 0:
            write_whole(path, json.dumps({"ours": rows}))
        distributed.destroy_process_group()
        return
    torch.manual_seed(0)
    weights = path.parent / "weights.safetensors"
    if distributed.get_rank() == 0:
        save_file(Wide().state_dict(), weights)
    distributed.barrier()
    torch.manual_seed(0)
    memory(None)  # what is loaded once is no part of a measurement
    held = [memory(given) for given in (weights, None)]
    cluster = link()
    processes = Processes(torch.device("cpu"))
    ours = beside_plans(cluster, processes)
    told = talk(cluster, processes)
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
        rows.sort(key=lambda row: (row["built"], row["rank"]))
        found = {"ours": ours, "talk": told, "torch": theirs}
        write_whole(path, json.dumps({**found, "memory": rows}))
    distributed.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
