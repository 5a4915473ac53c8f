# SPDX-License-Identifier: Apache-2.0
"""Random functional graphs with random devices, for the tests of programs and executors."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from baechi.torch import sim
from baechi.torch.program import Program, Run, calls_of, lower
from baechi.torch.run import interpreter
from torch import Tensor, fx
from torch.fx.experimental.proxy_tensor import make_fx

RACE = {"asynchronous": True, "poison": True, "longest_delay": "150us"}


@dataclass
class Case:
    """A graph, its inputs on the host, and where everything is."""

    graph: fx.GraphModule
    inputs: list[Any]
    device_of: dict[fx.Node, int]
    promised: list[int | None]
    order: list[fx.Node] | None
    devices: int

    def program(self) -> Program:
        calls = calls_of(self.graph, self.device_of, promised=self.promised)
        return lower(calls, devices=self.devices, order=self.order)

    def expected(self) -> list[Any]:
        """Return what the graph gives on the host, inputs changed in place behind the outputs."""
        copies = [value.clone() if isinstance(value, Tensor) else value for value in self.inputs]
        results = self.graph(*copies)
        return [*results, *copies]

    def on(self, devices: Sequence[torch.device]) -> list[Any]:
        """Return the inputs where the program wants them."""
        holders = [n for n in self.graph.graph.nodes if n.op == "placeholder"]
        result = []
        for holder, value in zip(holders, self.inputs, strict=True):
            if not isinstance(value, Tensor):
                result.append(value)
            elif self.device_of[holder] < 0:
                result.append(value.clone())
            else:
                result.append(value.clone().to(devices[self.device_of[holder]]))
        return result


def _unary(pick: random.Random, x: Tensor) -> Tensor:
    calls: list[Callable[[Tensor], Tensor]] = [
        torch.tanh,
        torch.t,
        lambda x: x.reshape(-1),
        lambda x: x.contiguous().view(-1).view(x.shape),
        lambda x: x.sum(0, keepdim=True).expand(x.shape),
        lambda x: torch.softmax(x, -1),
        lambda x: torch.ops.aten.native_layer_norm(x, [x.shape[-1]], None, None, 1e-5)[0],
        lambda x: torch.cat(list(reversed(x.chunk(2, -1))), -1),
        lambda x: x.chunk(2, 0)[0] * 0.5,
        lambda x: torch.stack(x.unbind(0), 1),
        lambda x: x + torch.arange(x.shape[-1], dtype=x.dtype, device=x.device) * 0.1,
        lambda x: x * torch.tensor(0.5, dtype=x.dtype),
        lambda x: x / x.shape[0],
        lambda x: x.max(-1)[0].unsqueeze(-1) - x,
        lambda x: x.contiguous().as_strided((2,), (1,), 1).sum() + x,
        lambda x: x[1:, ::2].sum() * 0.1 + x,
    ]
    return pick.choice(calls)(x) if min(x.shape) > 1 else x.reshape(1, -1).expand(4, -1) * 0.5


def _binary(pick: random.Random, a: Tensor, b: Tensor) -> Tensor:
    calls: list[Callable[[Tensor, Tensor], Tensor]] = [
        lambda a, b: torch.tanh(a @ b.t()),
        lambda a, b: a + b,
        lambda a, b: a * b,
        lambda a, b: torch.where(a > 0, a, b),
        lambda a, b: torch.cat([a, b], 0)[: a.shape[0]],
        lambda a, b: a - b.mean(-1, keepdim=True),
    ]
    return pick.choice(calls)(a, b)


def random_case(
    seed: int, *, calls: int = 30, devices: int = 3, symbolic: bool = False, size: int = 4
) -> Case:
    """Return a case that the seed decides."""
    pick = random.Random(seed)
    generator = torch.Generator().manual_seed(seed)
    count = pick.randint(2, 4)
    inputs = [
        torch.randn(size, size, dtype=torch.double, generator=generator) for _ in range(count)
    ]

    def function(*values: Tensor) -> list[Any]:
        known = list(values)
        for _ in range(calls):
            x = pick.choice(known[-8:])
            made = _unary(pick, x) if x.dim() == 2 else x.reshape(1, -1)
            other = pick.choice(known[-8:])
            if pick.random() < 0.5 and other.shape == x.shape and x.dim() == 2:
                made = _binary(pick, x, other)
            known.append(made)
        outputs: list[Any] = pick.sample(known, 4)
        outputs += [None, values[0]]
        values[1].copy_(known[-1].sum() + values[1])
        return outputs

    mode = "symbolic" if symbolic else "fake"
    graph = make_fx(torch.func.functionalize(function), tracing_mode=mode)(*inputs)
    graph.graph.eliminate_dead_code()
    graph.recompile()
    return placed(graph, inputs, pick, devices)


def placed(graph: fx.GraphModule, inputs: list[Any], pick: random.Random, devices: int) -> Case:
    """Give everything in a graph a random device, the host too, and its calls a random order."""
    nodes = [n for n in graph.graph.nodes if n.op in ("placeholder", "call_function")]
    device_of = {node: pick.randrange(-1, devices) for node in nodes}
    outputs = graph.graph.output_node().args[0]
    promised = [pick.choice([None, *range(-1, devices)]) for _ in outputs]
    order = [node for node in nodes if node.op == "call_function"]
    pick.shuffle(order)
    return Case(graph, inputs, device_of, promised, pick.choice([None, order]), devices)


def same(found: list[Any], expected: list[Any]) -> None:
    """Compare results with those of the host, but for what roundings differ by."""
    assert len(found) == len(expected)
    for a, b in zip(found, expected, strict=True):
        if isinstance(b, torch.Tensor):
            torch.testing.assert_close(a.cpu(), b, rtol=1e-12, atol=1e-12)
        else:
            assert a == b


def boxed(run: Callable[[list[Any]], list[Any]]) -> Any:
    """Have AOTAutograd hand over its list of inputs."""

    def call(inputs: list[Any]) -> list[Any]:
        return run(inputs)

    call._boxed_call = True  # type: ignore[attr-defined]
    return call


def failing(compiled: Callable[..., Any], devices: list[torch.device]) -> str:
    """Return the error of an index that is off its tensor."""
    graph = make_fx(lambda x, i: x[i] * 2, tracing_mode="fake")(torch.ones(3), torch.tensor([1]))
    call = next(n for n in graph.graph.nodes if n.op == "call_function")
    device_of = dict.fromkeys(graph.graph.nodes, 1)
    program = lower(calls_of(graph, device_of, names={call: "net.table:index:0"}), devices=2)
    inputs = [torch.ones(3, device=devices[1]), torch.tensor([7], device=devices[1])]
    with pytest.raises(IndexError) as error:
        compiled(program, devices)(inputs)
    return str(error.value)


def own_memory(program: Program, devices: list[torch.device], inputs: list[Any]) -> dict[str, int]:
    """Measure what each call holds for itself while it runs: composite kernels allocate."""
    found: dict[str, int] = {}

    class Measured(interpreter._Running):
        def run(self, call: Run) -> None:
            if call.device < 0:
                return super().run(call)
            sim.reset_peak_memory_stats(call.device)
            super().run(call)
            more = sim.max_memory_allocated(call.device) - sim.memory_allocated(call.device)
            found[call.name] = more
            return None

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(interpreter, "_Running", Measured)
        interpreter.Interpreter(program, devices)(inputs)
    return found


def measured_peaks(
    program: Program,
    run: Callable[[list[Any]], list[Any]],
    given: Callable[[], list[Any]],
    keep: bool = False,
) -> list[int]:
    """Return the most bytes that a run takes on each simulated device, inputs and all.

    It ran before: its constants are there.
    """
    before = [sim.memory_allocated(i) for i in range(program.devices)]
    for slot, _ in program.constants:
        if slot.device is not None and slot.device >= 0:
            before[slot.device] -= -(-slot.bytes // 512) * 512
    inputs = given()
    kept = list(inputs) if keep else []
    for i in range(program.devices):
        sim.reset_peak_memory_stats(i)
    results = run(inputs)
    most = [sim.max_memory_allocated(i) for i in range(program.devices)]
    del kept, results
    return [now - there for now, there in zip(most, before, strict=True)]
