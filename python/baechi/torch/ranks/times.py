# SPDX-License-Identifier: Apache-2.0
"""Times of ranks: what a message takes its ends, and a step before and behind its program.

What is measured comes behind a pause, as behind a kernel, which leaves nothing in the caches.
"""

from __future__ import annotations

import gc
import statistics
import time
from typing import Any

import torch
from torch import nn

from baechi._core import Cluster
from baechi.pipeline import with_fields
from baechi.torch.devices import store_of
from baechi.torch.program.cutting import Layout, Message
from baechi.torch.ranks.processes import Processes
from baechi.torch.ranks.program import RankPlacement
from baechi.torch.ranks.steps import RankSteps
from baechi.torch.ranks.transport import Transport
from baechi.torch.ranks.weights import RankWeights

_PAUSE, _REPEATS = 0.002, 16
_LAYERS, _WIDTH = 8, 4  # of the model whose step is measured


def with_times(cluster: Cluster, processes: Processes, micro_batches: int) -> Cluster:
    """Return a cluster with what messages and steps take, unless it says so or has a host."""
    if store_of(cluster) is not None:
        return cluster
    if cluster.sends == "free":
        send, receive = message_time(processes)
        cluster = with_fields(cluster, sends={"send": _text(send), "receive": _text(receive)})
    if cluster.host_time_ns is None:  # a call and a send have no time of their own
        step = _text(step_time(processes, micro_batches))
        cluster = with_fields(cluster, host_time={"call": "0ns", "send": "0ns", "step": step})
    return cluster


def _text(seconds: float) -> str:
    return f"{round(seconds * 1e9)}ns"


def message_time(processes: Processes) -> tuple[float, float]:
    """Return the seconds of processor time that a message takes its sender and its receiver.

    They are medians over all ranks.
    """
    transport, rank, count = Transport(processes), processes.rank, processes.count
    value, taken = torch.ones(256, device=processes.device), []
    ends = (rank, (rank + 1) % count), ((rank - 1) % count, rank)
    transport.messages = [Message("a measurement", [Layout.of(value)], *each) for each in ends]
    calls: list[tuple[Any, ...]] = [(transport.send, 0, value), (transport.expect, 1)]
    calls += [(transport.take, 1), (transport.gone, 0)]
    for _ in range(_REPEATS):
        for call, *given in calls:
            time.sleep(_PAUSE)
            begin = time.thread_time()
            call(*given)
            taken.append(time.thread_time() - begin)
        transport.finish()
    every = torch.tensor(processes.gathered(taken), dtype=torch.float64).view(-1, len(calls))
    send, expect, take, gone = every.median(0).values.tolist()
    return send + gone, expect + take


def step_time(processes: Processes, micro_batches: int) -> float:
    """Return the seconds that a step of a small model takes beside its program.

    All of it is on rank 0, whose median that is; the others come to the end with it.
    """
    device, rank = processes.device, processes.rank
    with torch.random.fork_rng([]):
        layers = [nn.Linear(_WIDTH, _WIDTH) for _ in range(_LAYERS)]
        model = nn.Sequential(*layers).to(device)
        devices = [processes.traced] * processes.count
        placement = RankPlacement(processes, model, devices, {}, {})
        names = (name for name, _ in model.named_parameters())
        placement.weights = RankWeights(model, dict.fromkeys(names, 0), rank)
        placement.weights.let_go(device, processes.traced, ())
        steps = RankSteps(model, torch.mean, placement, micro_batches, micro_batches)
        x, taken = torch.ones(micro_batches, _WIDTH, device=device), list[float]()
        for _ in range(_REPEATS):
            time.sleep(_PAUSE)
            begin = time.perf_counter()
            steps(x, None, None)
            taken.append(time.perf_counter() - begin - sum(p.took for p in steps.last))
            model.zero_grad()
    del steps, model, placement.weights  # dynamo keeps the placement
    gc.collect()
    found: float = processes.gathered(statistics.median(taken))[0]
    return found
