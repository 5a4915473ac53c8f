# SPDX-License-Identifier: Apache-2.0
"""Programs on several devices give what their graphs give on one, run by C++ or by Python."""

from __future__ import annotations

import threading
from functools import partial
from typing import Any

import baechi.torch.sim as sim
import pytest
import torch
from baechi.torch import native
from baechi.torch.program import calls_of, lower, parse
from baechi.torch.run import executor
from baechi.torch.run.interpreter import Interpreter
from places import virtual_ns
from random_graphs import RACE, boxed, failing, random_case, same
from step_models import module
from torch import Tensor, fx, nn
from torch._dynamo.backends.common import aot_autograd
from torch.fx.experimental.proxy_tensor import make_fx

HOST = torch.device("cpu")


@pytest.mark.parametrize(
    ("seed", "symbolic"), [*((i, False) for i in range(24)), *((i, True) for i in range(8))]
)
def test_random_programs_give_what_the_interpreter_gives_to_the_bit(
    seed: int, symbolic: bool
) -> None:
    case = random_case(100 + seed, symbolic=symbolic)
    program = case.program()
    assert parse(str(program), program.table) == program
    with sim.configured(devices=3, seed=seed, **RACE):
        devices = [torch.device("sim", i) for i in range(3)]
        results = []
        for run in (executor.compile(program, devices), Interpreter(program, devices)):
            for _ in range(2):
                inputs = case.on(devices)
                given = list(inputs)
                results.append([*run(inputs), *given])
                assert inputs == []
        same(results[0], case.expected())
        for device, out in zip(case.promised, results[0], strict=False):
            if isinstance(out, Tensor) and device is not None:
                assert out.device == (devices[device] if device >= 0 else HOST)
        for other in results[1:]:
            for a, b in zip(results[0], other, strict=True):
                assert type(a) is type(b)
                if isinstance(a, Tensor):
                    assert a.device == b.device
                    assert a.stride() == b.stride()
                    assert torch.equal(a.cpu(), b.cpu())
                else:
                    assert a == b


def compiler_of(make: Any, programs: list[str]) -> Any:
    """Return what runs the graphs of AOTAutograd by programs whose calls are on two devices."""

    def compiled(graph: fx.GraphModule, _: Any) -> Any:
        nodes = [n for n in graph.graph.nodes if n.op in ("placeholder", "call_function")]
        program = lower(calls_of(graph, {node: i % 2 for i, node in enumerate(nodes)}), devices=2)
        assert parse(str(program), program.table) == program
        programs.append(str(program))
        return boxed(make(program, [HOST, HOST]))

    return compiled


@module(lambda: {"first": nn.Linear(4, 4), "last": nn.Linear(4, 4)})
def Nested(self: Any, x: Tensor) -> Tensor:
    """A conditional, which stays one call, between layers of their own."""
    y = self.first(x)
    z = torch.cond(y.sum() > 0, lambda y: y.sin() * 2, lambda y: y.cos(), (y,))
    return self.last(z * y.shape[0])


@pytest.mark.filterwarnings("ignore")
def test_calls_of_higher_order_run_as_one() -> None:
    ran: list[str] = []
    compiled = compiler_of(executor.compile, ran)
    torch.manual_seed(0)
    model = Nested()
    ours = aot_autograd(fw_compiler=compiled, bw_compiler=compiled)
    run = torch.compile(model, backend=ours, dynamic=True)
    with torch.no_grad():
        for samples in (3, 5, 2):
            x = torch.randn(samples, 4)
            assert torch.equal(run(x), model(x))
    assert any("$" in line and "cond" in line for line in ran[0].splitlines())
    torch._dynamo.reset()


@module(
    lambda: {"table": nn.Embedding(10, 4), "linear": nn.Linear(4, 6), "norm": nn.BatchNorm1d(6)}
)
def Mixed(self: Any, indices: torch.Tensor) -> torch.Tensor:
    """Batch norm's averages, a constant, a size, dropout and parts of a tensor."""
    x = self.table(indices).sum(1)
    a, b = self.norm(self.linear(x)).chunk(2, -1)
    x = a * b.view(-1, 1, 3) * torch.tensor(2.0) + x.shape[0]
    return nn.functional.dropout(x, 0.5).sum()


def test_forward_and_backward_graphs_of_varying_sizes_train_as_they_do_without_programs() -> None:
    programs: list[str] = []
    compiled = compiler_of(Interpreter, programs)
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


@pytest.mark.parametrize("make", [Interpreter, executor.compile])
def test_what_does_not_fit_the_program_is_refused(make: Any) -> None:
    program = random_case(0).program()
    with pytest.raises(ValueError, match="devices: 2, but the program is for 3"):
        make(program, [HOST] * 2)
    with pytest.raises(ValueError, match=r"inputs: 0, but the program has \d"):
        make(program, [HOST] * 3)([])


@pytest.mark.parametrize("make", [Interpreter, executor.compile])
def test_an_input_that_is_elsewhere_is_refused(make: Any) -> None:
    graph = make_fx(lambda a, w: [a * w], tracing_mode="fake")(*[torch.ones(4)] * 2)
    program = lower(
        calls_of(graph, {n: 0 for n in graph.graph.nodes if n.op != "output"}), devices=1
    )
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
        run = make(lower(calls_of(graph, place), devices=2), devices)
        a, w = (torch.ones(1000, device="sim:0") for _ in range(2))
        results = run([a, w])
        w.fill_(7)
        assert results[1].cpu().unique().tolist() == [2]


def test_numbers_are_computed_of_sizes_before_and_of_results_on_the_way() -> None:
    text = """\
devices 1
input %a number
input %b number
input %x @0 8
@host %c number = operator.floordiv(%a, %b)  # c
free %b
@host %d number = torch.sym_max(%c, 3)  # d
free %c
@host %n number = aten.sym_size.int(%x, 0)  # n
@host %m number = operator.mul(%n, %d)  # m
free %n %d
@0 %y @0 8 = aten.mul.Tensor(%x, %m)  # y
free %x
output %y, %m, %a"""
    program = parse(text)
    run = executor.compile(program, [HOST])
    assert isinstance(run, executor.Executor)
    for a, b, m in ((-7, 2, 6), (9, 2, 8), (2.5, 0.5, 10.0)):
        y, *numbers = run([a, b, torch.ones(2)])
        assert numbers == [m, a]
        assert isinstance(numbers[0], float) == isinstance(m, float)
        assert y.tolist() == [m, m]
    with pytest.raises(ZeroDivisionError):
        run([1, 0, torch.ones(2)])


def test_a_program_runs_in_several_threads_at_once() -> None:
    case = random_case(3)
    program = case.program()
    with sim.configured(devices=3, **RACE):
        devices = [torch.device("sim", i) for i in range(3)]
        run = executor.compile(program, devices)
        results: list[list[Any]] = []

        def work() -> None:
            for _ in range(3):
                inputs = case.on(devices)
                given = list(inputs)
                results.append([*run(inputs), *given])

        threads = [threading.Thread(target=work) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(results) == 9
        for result in results:
            same(result, case.expected())


def test_an_error_names_the_call_and_its_device_and_the_next_run_is_right() -> None:
    for make in (executor.compile, Interpreter):
        found = failing(make, [HOST, HOST])
        assert found.startswith("baechi: in net.table:index:0 on cpu: index 7 is out of bounds")
    case = random_case(5)
    with sim.configured(devices=3, asynchronous=False, memory=["16KiB", None, None]):
        devices = [torch.device("sim", i) for i in range(3)]
        run = executor.compile(case.program(), devices)
        inputs = case.on(devices)
        room = 16384 - sim.memory_allocated(0)
        full = torch.empty(room, dtype=torch.int8, device="sim:0")
        with pytest.raises(torch.OutOfMemoryError, match=r"baechi: .* sim:0 is out of memory"):
            run(inputs)
        del full, inputs
        same(run(case.on(devices)), case.expected()[: len(case.promised)])


def test_without_a_compiler_programs_run_in_python(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise native.BuildError("no compiler")

    monkeypatch.setattr(native, "load", refuse)
    native.library.cache_clear()
    case = random_case(0)
    run = executor.compile(case.program(), [HOST] * 3)
    native.library.cache_clear()
    assert isinstance(run, Interpreter)
    same(run(case.on([HOST] * 3)), case.expected()[: len(case.promised)])


def test_executor_and_interpreter_run_the_same_kernels() -> None:
    def function(x: Tensor, g: Tensor) -> list[Tensor]:
        return [torch.ops.aten.silu_backward(g, x)]  # above autograd in several

    graph = make_fx(function, tracing_mode="fake")(*[torch.ones(100)] * 2)
    program = lower(calls_of(graph, dict.fromkeys(graph.graph.nodes, 0)))
    with sim.configured(devices=1, asynchronous=False, clock="virtual", operator_time="1us"):
        device = torch.device("sim", 0)
        inputs = [torch.ones(100).to(device) for _ in range(2)]
        for make in (Interpreter, executor.compile):
            run: Any = make(program, [device])
            assert round(virtual_ns(partial(lambda run: run([*inputs]), run))) == 1000


def test_a_profile_has_the_names_of_the_calls() -> None:
    graph = make_fx(lambda x: [x.relu()], tracing_mode="fake")(torch.ones(3))
    call = next(n for n in graph.graph.nodes if n.op == "call_function")
    program = lower(
        calls_of(graph, dict.fromkeys(graph.graph.nodes, 0), names={call: "net.act:relu:0"})
    )
    run = executor.compile(program, [HOST])
    with torch.profiler.profile() as profile:
        run([torch.ones(3)])
    names = {event.key for event in profile.key_averages()}
    assert {"net.act:relu:0", "aten::relu"} <= names
