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

from baechi.torch.program import Program, Send, lower
from baechi.torch.run import executor

_CALLS, _REPEATS = 300, 10


def host_time(devices: Sequence[torch.device]) -> tuple[float, float] | None:
    """Return the seconds of a call and of a send from one device to another.

    It is the processor time of this thread, with kernels that are too small to matter; of each the
    least of several runs. None: a CPU computes in that thread.
    """
    if len(devices) < 2 or any(device.type == "cpu" for device in devices[:2]):
        return None
    graph = make_fx(_chain, tracing_mode="fake")(torch.ones(4))
    nodes = [node for node in graph.graph.nodes if node.op in ("placeholder", "call_function")]
    alone = lower(graph, dict.fromkeys(nodes, 0), devices=2)
    hopping = lower(graph, {node: i % 2 for i, node in enumerate(nodes)}, devices=2)
    sends = sum(isinstance(one, Send) for one in hopping.code)
    calls, both = (_seconds(program, devices[:2]) for program in (alone, hopping))
    return calls / _CALLS, max(both - calls, 0.0) / sends


def _chain(x: torch.Tensor) -> list[torch.Tensor]:
    for _ in range(_CALLS):
        x = torch.neg(x)
    return [x]


def _seconds(program: Program, devices: Sequence[torch.device]) -> float:
    run: Callable[[list[Any]], list[Any]] = executor.compile(program, devices)
    value, best = torch.ones(4, device=devices[0]), float("inf")
    for _ in range(_REPEATS):
        begin = time.thread_time()
        run([value])
        best = min(best, time.thread_time() - begin)
        torch.accelerator.synchronize(devices[0])
    return best
