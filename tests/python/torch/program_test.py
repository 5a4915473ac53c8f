# SPDX-License-Identifier: Apache-2.0
"""Tests of lowering, of the text form of programs, and of their peaks."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import baechi.torch.sim as sim
import pytest
import torch
from baechi.torch.program import Program, Run, Send, calls_of, lower, parse, walk
from baechi.torch.program.peaks import exceeds
from baechi.torch.run import executor
from random_graphs import measured_peaks, own_memory, random_case
from torch import Tensor, fx
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx


def traced(function: Callable[..., Any], *shapes: tuple[int, ...]) -> fx.GraphModule:
    graph = make_fx(function, tracing_mode="fake")(*(torch.ones(shape) for shape in shapes))
    graph.graph.eliminate_dead_code()
    return graph


def placed(graph: fx.GraphModule, **devices: int) -> dict[fx.Node, int]:
    """Devices by the nodes' names, 0 for the rest."""
    nodes = [n for n in graph.graph.nodes if n.op in ("placeholder", "call_function")]
    assert set(devices) <= {node.name for node in nodes}
    return {node: devices.get(node.name, 0) for node in nodes}


def lowered(
    graph: fx.GraphModule, devices: dict[str, int], order: Any = None, promised: Any = None
) -> Program:
    calls = calls_of(graph, placed(graph, **devices), promised=promised)
    program = lower(calls, devices=2, order=order)
    assert parse(str(program), program.table) == program
    return program


def test_a_tensor_is_sent_behind_its_producer_and_waited_for_where_it_is_read() -> None:
    def function(x: Tensor, w: Tensor) -> Any:
        y = x.mm(w)
        return [y.relu(), y.tanh() + y.t().mm(y)]

    graph = traced(function, (4, 4), (4, 4))
    program = lowered(graph, {"tanh": 1, "mm_1": 1, "add": 1}, promised=[None, 0])
    assert (
        str(program)
        == """\
devices 2
input %x_1 @0 64
input %w_1 @0 64
@0 %mm @0 64 = aten.mm.default(%x_1, %w_1)  # mm
free %x_1 %w_1
%mm@1 @1 64 = send %mm @0
@0 %relu @0 64 = aten.relu.default(%mm)  # relu
free %mm
wait %mm@1 @1
@1 %tanh @1 64 = aten.tanh.default(%mm@1)  # tanh
@1 %t@1 @1 of %mm@1 = aten.t.default(%mm@1)  # t
@1 %mm_1 @1 64 = aten.mm.default(%t@1, %mm@1)  # mm_1
free %mm@1 %t@1
@1 %add @1 64 = aten.add.Tensor(%tanh, %mm_1)  # add
free %tanh %mm_1
%add@0 @0 64 = send %add @1
free %add
wait %add@0 @0
output %relu, %add@0"""
    )


def test_inputs_are_sent_at_the_start_and_changed_only_when_they_have_arrived() -> None:
    def function(x: Tensor, w: Tensor) -> Any:
        y = x.mm(w)
        return [y, w.copy_(w + 1)]

    graph = traced(function, (4, 4), (4, 4))
    text = str(lowered(graph, {"mm": 1, "copy_": 1}))
    lines = text.splitlines()
    assert lines[3:5] == ["%x_1@1 @1 64 = send %x_1 @0", "free %x_1"]
    assert lines[5] == "%w_1@1 @1 64 = send %w_1 @0"
    waits = [line for line in lines if line.startswith("wait")]
    assert waits == ["wait %x_1@1 @1", "wait %w_1@1 @1", "wait %w_1@1 @0"]
    changed = next(i for i, line in enumerate(lines) if "copy_" in line)
    assert lines[changed].startswith("@0 %copy_ @0 of %w_1")  # where what it changes is
    assert lines.index("wait %w_1@1 @0") < changed


def test_of_a_tensor_only_the_part_that_is_read_travels() -> None:
    def function(x: Tensor) -> Any:
        a, b = x.tanh().split(2, 1)
        return [a.relu(), b.t().relu()]

    graph = traced(function, (4, 4))
    program = lowered(graph, {"relu_1": 1})
    sends = [one for one in program.code if isinstance(one, Send)]
    assert [(send.source.name, send.out.bytes) for send in sends] == [("t", 32)]


def test_copies_between_devices_are_no_calls_and_those_from_and_to_the_host_are() -> None:
    with FakeTensorMode():
        x = torch.empty(4, 4, device="meta")

        def function(x: Tensor) -> Any:
            return torch.ops.aten._to_copy(x.relu(), device="cpu")

        graph = make_fx(function)(x)
    move = next(n for n in graph.graph.nodes if "to_copy" in n.name)
    on_device = lower(calls_of(graph, placed(graph, **{move.name: 1}), promised=[1]), devices=2)
    assert [type(one) for one in on_device.code if isinstance(one, Run | Send)] == [Run, Send]
    to_host = lower(calls_of(graph, placed(graph, **{move.name: -1})), devices=2)
    last = [one for one in to_host.code if isinstance(one, Run)][-1]
    assert "@host %_to_copy @host 64 = aten._to_copy.default(%relu, device=here)" in str(to_host)
    assert last.device == -1


def test_a_planned_order_holds_where_the_data_lets_it() -> None:
    graph = traced(lambda x: [x.relu(), x.tanh(), x.tanh().t().neg()], (4, 4))
    nodes = {node.name: node for node in graph.graph.nodes}
    order = [nodes[name] for name in ("neg", "tanh", "relu")]
    program = lowered(graph, {}, order=order)
    assert [one.name for one in program.code if isinstance(one, Run)] == [
        "tanh_1",
        "t",
        "neg",
        "tanh",
        "relu",
    ]


def test_random_calls_of_a_device_keep_their_order() -> None:
    graph = traced(lambda x: [torch.bernoulli(x), torch.bernoulli(x), torch.bernoulli(x)], (4, 4))
    calls = [node for node in graph.graph.nodes if node.op == "call_function"]
    device_of = dict.fromkeys(graph.graph.nodes, 0) | {calls[1]: 1}
    program = lower(calls_of(graph, device_of), order=calls[::-1])
    names = [one.name for one in program.code if isinstance(one, Run)]
    assert names == ["bernoulli", "bernoulli_2", "bernoulli_1"]


def test_text_says_every_kind_of_constant() -> None:
    def function(x: Tensor) -> Any:
        y = torch.full([2], math.inf) + torch.full([2], -math.inf)
        z = torch.nn.functional.gelu(x, approximate="tanh").to(torch.float16)
        return [y, torch.ops.aten.clone(z, memory_format=torch.contiguous_format), 3, None, "a%b"]

    program = lowered(traced(function, (2, 2)), {})
    text = str(program)
    for word in ("[2], inf", "-inf", "approximate='tanh'", "torch.float16", "'a%b'"):
        assert word in text
    assert program.outputs[2:] == (3, None, "a%b")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("devices two", "line 1: 'devices two'"),
        ("devices 1\nfree %x", "line 2: 'free %x': 'x'"),
        ("devices 1\n@0 %y @0 4 = aten.nothing.default()  # y", "line 2"),
        ("devices 1\nhello", "line 2: 'hello'"),
    ],
)
def test_text_that_is_no_program_is_refused_with_its_line(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        parse(text)


def test_what_has_no_device_is_named() -> None:
    graph = traced(lambda x: x.relu(), (2,))
    names = dict.fromkeys(graph.graph.nodes, "net:relu:0")
    inputs = {node: 0 for node in graph.graph.nodes if node.op == "placeholder"}
    with pytest.raises(ValueError, match="device_of: nothing for net:relu:0"):
        calls_of(graph, inputs, names=names)
    with pytest.raises(ValueError, match="promised: 2 devices, 1 outputs"):
        calls_of(graph, placed(graph), promised=[0, 0])


@pytest.mark.parametrize("seed", range(24))
@pytest.mark.parametrize("held", [False, True])
def test_peaks_are_the_allocators_to_the_byte(seed: int, held: bool) -> None:
    case = random_case(200 + seed, size=12, calls=40, symbolic=seed % 6 == 0)
    program = case.program()
    with sim.configured(devices=3, asynchronous=False):
        devices = [torch.device("sim", i) for i in range(3)]
        own = own_memory(program, devices, case.on(devices))
        run = executor.compile(program, devices)
        run(case.on(devices))  # which copies the constants
        names = [slot.name for slot in program.inputs] if held else []
        planned = walk(program, own=own, held=names)[0]
        measured = measured_peaks(program, run, lambda: case.on(devices), held)
    assert planned == measured


TEXT = """\
devices 2
input %w @0 1000
input %x @0 512
@0 %a @0 2048 = aten.mm.default(%w, %x)  # net:mm:0
free %w %x
@0 %v @0 of %a = aten.t.default(%a)  # net:t:0
free %a
%v@1 @1 2048 = send %v @0
free %v
wait %v@1 @1
@1 %b @1 4096 = aten.relu.default(%v@1)  # net:relu:0
free %v@1
output %b
"""


def test_a_peak_has_what_a_call_holds_for_itself() -> None:
    program = parse(TEXT)
    assert walk(program)[0] == [1024 + 512 + 2048, 2048 + 4096]
    assert walk(program, own={"net:relu:0": 100})[0][1] == 2048 + 4096 + 100


def test_a_program_exceeds_another_by_more_than_is_spare() -> None:
    less, more = parse(TEXT), parse(TEXT.replace("@1 4096", "@1 8192"))
    assert exceeds(more, less, [0, 4095])
    assert not exceeds(more, less, [0, 4096])
    assert not exceeds(less, more, [0, 0])


def test_an_input_that_the_caller_keeps_stays() -> None:
    text = TEXT.replace("input %x @0 512", "input %x @0 512\ninput %y @0 512\nfree %y")
    assert walk(parse(text), held=["y"])[0][0] == walk(parse(text))[0][0] + 512
    late = TEXT.replace("wait %v@1 @1", "wait %v@1 @1\n@0 %c @0 4096 = aten.relu.default(%w)  # c")
    late = late.replace("free %w %x", "free %x")
    assert walk(parse(late), held=["w"])[0][0] == 1024 + 4096
