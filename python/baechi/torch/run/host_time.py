# SPDX-License-Identifier: Apache-2.0
"""Host time: what programs cost the thread that asks accelerators for calls and copies.

Beyond the paper.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.fx.experimental.proxy_tensor import make_fx

from baechi._core import Cluster
from baechi.pipeline import with_fields
from baechi.torch.program import Program, Send, calls_of, lower
from baechi.torch.run import executor

_CALLS, _REPEATS = 300, 10


def host_time(
    devices: Sequence[torch.device], clock: Callable[[], float] = time.thread_time
) -> tuple[float, float] | None:
    """Return the seconds of a call and of a send from one device to another.

    It is the processor time of this thread, with kernels that are too small to matter; of each the
    least of several runs. None: a CPU computes in that thread.
    """
    if not devices or any(device.type == "cpu" for device in devices):
        return None
    graph = make_fx(_chain, tracing_mode="fake")(torch.ones(4))
    nodes = [node for node in graph.graph.nodes if node.op in ("placeholder", "call_function")]
    alone = lower(calls_of(graph, dict.fromkeys(nodes, 0)), devices=1)
    calls = _seconds(alone, devices[:1], clock)
    if len(devices) == 1:
        return calls / _CALLS, calls / _CALLS  # to its host's memory: asked for like a call
    hopping = lower(calls_of(graph, {node: i % 2 for i, node in enumerate(nodes)}), devices=2)
    sends = sum(isinstance(one, Send) for one in hopping.code)
    return calls / _CALLS, max(_seconds(hopping, devices[:2], clock) - calls, 0.0) / sends


def with_host_time(cluster: Cluster, devices: Sequence[torch.device]) -> Cluster:
    """Return a cluster with the host time of its devices, if it has none and they have one."""
    if cluster.host_time_ns is not None or not devices:
        return cluster
    module = torch.get_device_module(devices[0])
    clock = getattr(module, "host_clock", time.thread_time)  # of simulated devices
    if not any(found := host_time(devices, clock) or ()):
        return cluster
    call, send = (f"{round(seconds * 1e9)}ns" for seconds in found)
    return with_fields(cluster, host_time={"call": call, "send": send})


def _chain(x: torch.Tensor) -> list[torch.Tensor]:
    for _ in range(_CALLS):
        x = torch.neg(x)
    return [x]


def _seconds(
    program: Program, devices: Sequence[torch.device], clock: Callable[[], float]
) -> float:
    run: Callable[[list[Any]], list[Any]] = executor.compile(program, devices)
    value, best = torch.ones(4, device=devices[0]), float("inf")
    for _ in range(_REPEATS):
        begin = clock()
        run([value])
        best = min(best, clock() - begin)
        torch.accelerator.synchronize(devices[0])
    return best
