# SPDX-License-Identifier: Apache-2.0
"""What programs cost the host: processor time per call and per send, with tiny kernels.

    python bench/torch_executor.py

Calls on the CPU: a long chain of small calls, eagerly, as a graph in Python, by the interpreter
and by the executor. Sends: a chain that hops between two simulated devices, less the same chain on
one device and what the devices' own copies take.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import Any

import torch
from baechi.torch import sim
from baechi.torch.program import Program, Send, calls_of, lower
from baechi.torch.run.executor import compile as compiled
from baechi.torch.run.interpreter import Interpreter
from torch import Tensor, fx
from torch.fx.experimental.proxy_tensor import make_fx

CALLS, REPEATS = 300, 20


def chain(x: Tensor) -> list[Tensor]:
    """A third each of additions, products of matrices, and sigmoids."""
    for _ in range(CALLS // 3):
        x = torch.sigmoid((x + x).mm(x))
    return [x]


def microseconds(run: Callable[[], Any], settle: Callable[[], Any] = lambda: None) -> float:
    """Return this thread's processor time of a run, the least of several."""
    best = float("inf")
    for _ in range(REPEATS):
        start = time.thread_time()
        run()
        best = min(best, time.thread_time() - start)
        settle()
    return best * 1e6


def traced() -> fx.GraphModule:
    """Return the chain as a graph."""
    return make_fx(chain, tracing_mode="fake")(torch.ones(4, 4))


def hopping(graph: fx.GraphModule, devices: int) -> Program:
    """Return a program whose every call is on another device than the one before."""
    nodes = [n for n in graph.graph.nodes if n.op in ("placeholder", "call_function")]
    device_of = {node: i % devices for i, node in enumerate(nodes)}
    return lower(calls_of(graph, device_of), devices=2)


def own_copy(x: Tensor, y: Tensor) -> float:
    """Return what a copy between two devices takes without anything around it."""
    return microseconds(lambda: [y.copy_(x, non_blocking=True) for _ in range(100)]) / 100


def calls(graph: fx.GraphModule, x: Tensor) -> None:
    """Print what a call on the CPU takes."""
    weight, host = torch.nn.Parameter(x), [torch.device("cpu")] * 2
    interpreter, executor = (make(hopping(graph, 1), host) for make in (Interpreter, compiled))
    ways = {
        "eager, with autograd": lambda: chain(weight),
        "graph in Python": lambda: graph(x),
        "interpreter": lambda: interpreter([x]),
        "executor": lambda: executor([x]),
    }
    for name, run in ways.items():
        print(f"{name:22} {microseconds(run) / CALLS:6.2f} us per call")


def sends(graph: fx.GraphModule, x: Tensor, asynchronous: bool) -> None:
    """Print what a send between simulated devices takes."""
    count = sum(isinstance(one, Send) for one in hopping(graph, 2).code)
    how = "asynchronous" if asynchronous else "synchronous"
    with sim.configured(devices=2, asynchronous=asynchronous):
        devices = [torch.device("sim", i) for i in range(2)]
        start = x.to(devices[0])
        settle = functools.partial(synchronize_all, devices)
        copy = own_copy(start, x.to(devices[1]))
        for name, make in (("interpreter", Interpreter), ("executor", compiled)):
            took = []
            for used in (1, 2):
                run = make(hopping(graph, used), devices)
                took.append(microseconds(functools.partial(run_with, run, start), settle))
            each = (took[1] - took[0]) / count - copy
            print(f"{name:22} {each:6.2f} us per send, {how}; the copy itself {copy:.2f}")


def synchronize_all(devices: list[torch.device]) -> None:
    """Wait for all devices."""
    for device in devices:
        sim.synchronize(device)


def run_with(run: Callable[[list[Any]], list[Any]], value: Tensor) -> None:
    """Run a program of one input."""
    run([value])


def main() -> None:
    """Measure and print."""
    torch.set_num_threads(1)
    graph, x = traced(), torch.ones(4, 4)
    calls(graph, x)
    for asynchronous in (False, True):
        sends(graph, x, asynchronous)


if __name__ == "__main__":
    main()
