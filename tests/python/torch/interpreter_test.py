# SPDX-License-Identifier: Apache-2.0
"""Tests of the interpreter: programs on several devices give what their graphs give on one."""

from __future__ import annotations

import random
from typing import Any

import baechi.torch.sim as sim
import pytest
import torch
from baechi.torch.program import lower, parse
from baechi.torch.run import executor
from baechi.torch.run.interpreter import Interpreter
from random_graphs import boxed, random_case
from step_models import module
from torch import fx, nn
from torch._dynamo.backends.common import aot_autograd
from torch.fx.experimental.proxy_tensor import make_fx


@module(
    lambda: {"table": nn.Embedding(10, 4), "linear": nn.Linear(4, 6), "norm": nn.BatchNorm1d(6)}
)
def Mixed(self: Any, indices: torch.Tensor) -> torch.Tensor:
    """Batch norm's averages, a constant, a size, dropout and parts of a tensor."""
    x = self.table(indices).sum(1)
    a, b = self.norm(self.linear(x)).chunk(2, -1)
    x = a * b.view(-1, 1, 3) * torch.tensor(2.0) + x.shape[0]
    return torch.nn.functional.dropout(x, 0.5).sum()


def test_forward_and_backward_graphs_of_varying_sizes_train_as_they_do_without_programs() -> None:
    pick = random.Random(0)
    programs = []

    def compiled(graph: fx.GraphModule, _: Any) -> Any:
        nodes = [n for n in graph.graph.nodes if n.op in ("placeholder", "call_function")]
        program = lower(graph, {node: pick.randrange(3) for node in nodes}, devices=3)
        assert parse(str(program), program.table) == program
        programs.append(program)
        return boxed(Interpreter(program, [torch.device("cpu")] * 3))

    losses, states = [], []
    ours = aot_autograd(
        fw_compiler=compiled, bw_compiler=compiled, keep_inference_input_mutations=True
    )
    for backend in (ours, "aot_eager"):
        torch.manual_seed(0)
        model = Mixed()
        run = torch.compile(model, backend=backend, dynamic=True)
        for samples in (5, 7, 3):
            loss = run(torch.arange(4 * samples).reshape(samples, 4) % 10)
            loss.backward()
            losses.append(loss.item())
        grads = [parameter.grad for parameter in model.parameters()]
        states.append([*model.state_dict().values(), *grads])
    assert losses[:3] == losses[3:]
    assert len(programs) == 2
    assert all(torch.equal(a, b) for a, b in zip(*states, strict=True))
    torch._dynamo.reset()


def test_what_does_not_fit_the_program_is_refused() -> None:
    case = random_case(0)
    program = case.program()
    with pytest.raises(ValueError, match="devices: 2, but the program is for 3"):
        Interpreter(program, [torch.device("cpu")] * 2)
    with pytest.raises(ValueError, match=r"inputs: 0, but the program has \d"):
        Interpreter(program, [torch.device("cpu")] * 3)([])


@pytest.mark.parametrize("make", [Interpreter, executor.compile])
def test_an_input_that_is_elsewhere_is_refused(make: Any) -> None:
    graph = make_fx(lambda a, w: [a * w], tracing_mode="fake")(*[torch.ones(4)] * 2)
    program = lower(graph, {n: 0 for n in graph.graph.nodes if n.op != "output"}, devices=1)
    with sim.configured(devices=1):
        run = make(program, [torch.device("sim:0")])
        with pytest.raises(
            ValueError, match="input 1: it is on cpu, but the program has it on sim:0"
        ):
            run([torch.ones(4, device="sim:0"), torch.ones(4)])


@pytest.mark.parametrize("make", [Interpreter, executor.compile])
def test_the_caller_may_change_an_input_at_once_although_it_is_still_on_its_way(make: Any) -> None:
    graph = make_fx(lambda a, w: [a * 2, w * 2], tracing_mode="fake")(*[torch.ones(1000)] * 2)
    place = {n: int(n.op == "call_function") for n in graph.graph.nodes if n.op != "output"}
    slow = sim.Link("30ms", None)  # and one transfer at a time: the second begins 30 ms later
    with sim.configured(devices=2, link=slow, communication="sequential"):
        devices = [torch.device("sim", i) for i in range(2)]
        run = make(lower(graph, place, devices=2), devices)
        a, w = (torch.ones(1000, device="sim:0") for _ in range(2))
        results = run([a, w])
        w.fill_(7)
        assert results[1].cpu().unique().tolist() == [2]
