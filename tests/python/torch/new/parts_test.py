# SPDX-License-Identifier: Apache-2.0
"""Tests of steps of several micro-batches, and of second runs: they train as one device does."""

from __future__ import annotations

import random
from typing import Any

import baechi.torch.sim as sim
import pytest
import torch
from baechi.torch.program import (
    AGAIN,
    Calls,
    Parts,
    Roles,
    Run,
    calls_of,
    in_parts,
    lower,
    parse,
    peaks,
    run_again,
)
from baechi.torch.run import executor
from baechi.torch.run.interpreter import Interpreter
from new.random_graphs import RACE, measured_peaks, own_memory, same
from new.random_steps import Joint, random_joint
from torch import Tensor, fx
from torch.fx.experimental.proxy_tensor import make_fx


def placed(joint: Joint, pick: random.Random, devices: int) -> Calls:
    nodes = [n for n in joint.graph.graph.nodes if n.op in ("placeholder", "call_function")]
    device_of = {node: pick.randrange(devices) for node in nodes}
    homes = [device_of[node] for node in nodes[: joint.weights + 1]]
    return calls_of(joint.graph, device_of, promised=[None, homes[-1], *homes[:-1]])


def inputs_of(
    parts: Parts,
    shared: list[Tensor],
    batches: list[list[Tensor]],
    devices: list[torch.device],
    gradients: dict[int, Tensor],
) -> list[Tensor]:
    result = []
    for told, slot in zip(parts.inputs, parts.calls.inputs, strict=True):
        if told.gradient:
            value = gradients[told.place]
        elif told.part is None:
            value = shared[told.place]
        else:
            value = batches[told.part][told.place - len(shared)]
        result.append(value.clone().to(devices[slot.device or 0]))
    return result


def order_of(parts: Parts, joint: Joint, pick: random.Random) -> list[Any] | None:
    """Return None, or the forwards of all parts mixed, then the backwards."""
    nodes: list[Any] = [call.node for call in parts.calls.calls]
    forward = [n for n in nodes if n[0] not in joint.backward and len(n) == 2]
    backward = [n for n in nodes if n[0] in joint.backward]
    pick.shuffle(forward)
    backward.sort(key=lambda n: (-n[1], pick.random()))
    return pick.choice([None, forward + backward])


@pytest.mark.parametrize("seed", range(20))
def test_a_step_of_parts_gives_losses_buffers_and_sums_of_gradients_as_one_device(
    seed: int,
) -> None:
    pick = random.Random(seed)
    joint, count = random_joint(seed), pick.choice([1, 2, 4])
    calls = placed(joint, pick, 3)
    if seed % 2:
        chosen = [call.node for call in calls.calls if not call.lazy]
        forward = [node for node in chosen if node not in joint.backward]
        calls = run_again(calls, pick.sample(forward, len(forward) // 2), joint.backward)
    existing = [2 + i for i in range(joint.weights) if pick.random() < 0.3]
    parts = in_parts(calls, count, joint.roles, existing=existing)
    program = lower(parts.calls, devices=3, order=order_of(parts, joint, pick))
    assert parse(str(program), program.table) == program

    shared, batches = joint.inputs(seed, count)
    expected = joint.expected(shared, batches)
    there = {i: torch.ones_like(expected[count - 1 + i]) for i in existing}
    expected = [
        value + there[i - count + 1] if i - count + 1 in there else value
        for i, value in enumerate(expected)
    ]
    with sim.configured(devices=3, seed=seed, **RACE):
        devices = [torch.device("sim", i) for i in range(3)]
        run = executor.compile(program, devices)
        for _ in range(2):
            same(run(inputs_of(parts, shared, batches, devices, there)), expected)
    with sim.configured(devices=3, asynchronous=False):
        own = own_memory(program, devices, inputs_of(parts, shared, batches, devices, there))
        measured = measured_peaks(
            program, run, lambda: inputs_of(parts, shared, batches, devices, there)
        )
    assert [peak.bytes for peak in peaks(program, own=own)] == measured
    assert [out.part for out in parts.outputs[:count]] == list(range(count))


def test_gradients_are_added_up_as_they_are_made_into_those_that_are_there() -> None:
    joint = random_joint(1)
    calls = placed(joint, random.Random(0), 1)
    parts = in_parts(calls, 3, joint.roles, existing=[2])
    program = lower(parts.calls, devices=1)
    adds = [one for one in program.code if isinstance(one, Run) and "add_" in str(one.target)]
    assert len(adds) == 3 + 2 * (joint.weights - 1)  # the others start from their first part
    assert all(one.name.endswith(":sum") for one in adds)
    live = [str(one).count("sum") for one in str(program).splitlines()]
    assert live
    first = next(i for i, one in enumerate(program.code) if one in adds)
    backwards = [i for i, one in enumerate(program.code) if isinstance(one, Run)]
    assert first < backwards[len(backwards) // 2]  # and not when all are there


@pytest.mark.parametrize("seed", range(6))
def test_dropout_of_a_second_run_is_that_of_the_first(seed: int) -> None:
    pick = random.Random(seed)
    joint = random_joint(seed, layers=10, dropout=True)
    draws = {node for node in joint.calls() if "dropout" in node.name or "bernoulli" in node.name}
    nodes = [n for n in joint.graph.graph.nodes if n.op in ("placeholder", "call_function")]
    results = []
    shared, batches = joint.inputs(seed, 2)
    for again in (False, True):
        device_of = {node: pick.randrange(3) * again for node in nodes}
        device_of.update(dict.fromkeys(draws, 0))
        calls = calls_of(joint.graph, device_of)
        if again:
            chosen = [call.node for call in calls.calls if not call.lazy]
            chosen = [node for node in chosen if node not in joint.backward]
            calls = run_again(calls, chosen, joint.backward)
        parts = in_parts(calls, 2, joint.roles)
        program = lower(parts.calls, devices=3)
        assert parse(str(program), program.table) == program
        with sim.configured(devices=3, seed=seed, **RACE):
            devices = [torch.device("sim", i) for i in range(3)]
            run = executor.compile(program, devices)
            torch.manual_seed(7)
            one, two = (
                [x.cpu() for x in run(inputs_of(parts, shared, batches, devices, {}))]
                for _ in range(2)
            )
            results.append([*one, *two])
    if draws:
        assert not torch.equal(results[0][0], results[0][len(results[0]) // 2])
    same(results[1], results[0])


def test_a_second_run_comes_before_its_reader_and_frees_what_the_first_made() -> None:
    def function(x: Tensor, g: Tensor) -> list[Tensor]:
        h = x.sin()
        y = h.exp()
        z = y.cos()
        return [z, g * y, g * h.t().t()]

    graph = make_fx(function, tracing_mode="fake")(*[torch.ones(4, 4)] * 2)
    nodes: dict[str, fx.Node] = {node.name: node for node in graph.graph.nodes}
    calls = calls_of(graph, dict.fromkeys(graph.graph.nodes, 0))
    calls = run_again(calls, [nodes["sin"], nodes["exp"]], [nodes["mul"], nodes["mul_1"]])
    program = lower(calls)
    names = [one.name for one in program.code if isinstance(one, Run)]
    assert names == ["sin", "exp", "cos", "sin", "exp", "mul", "t", "t_1", "mul_1"]
    assert "free %exp\n" in str(program)
    assert [call.node for call in calls.calls if isinstance(call.node, tuple)] == [
        (nodes["sin"], AGAIN),
        (nodes["exp"], AGAIN),
        (nodes["t"], AGAIN),
        (nodes["t_1"], AGAIN),
    ]
    with pytest.raises(ValueError, match="mul: only a forward call"):
        run_again(calls, [nodes["mul"]], [nodes["mul"]])


@pytest.mark.parametrize("make", [executor.compile, Interpreter])
def test_a_buffer_that_is_changed_in_place_is_read_as_the_part_before_left_it(make: Any) -> None:
    def function(buffer: Tensor, x: Tensor) -> list[Tensor]:
        new = buffer * 0.5 + x
        y = x * buffer
        buffer.copy_(new)
        return [y]

    graph = make_fx(function, tracing_mode="fake")(torch.ones(3), torch.ones(3))
    calls = calls_of(graph, dict.fromkeys(graph.graph.nodes, 0))
    parts = in_parts(calls, 3, Roles(shared=[0]))
    order = [call.node for call in parts.calls.calls][::-1]  # which cannot be
    run = make(lower(parts.calls, order=order), [torch.device("cpu")])
    buffer, x = torch.full((3,), 8.0), torch.ones(3)
    results = run([buffer, x, x * 2, x * 3])
    assert [result[0].item() for result in results] == [8, 2 * 5, 3 * 4.5]
    assert buffer.tolist() == [5.25] * 3
