# SPDX-License-Identifier: Apache-2.0
"""The graph of a step: operators, edges, groups, updates; and what plans of it reach."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import step_models as models
import torch
from baechi.torch.capture.step import LOSS, Step
from baechi.torch.capture.trace import capture
from baechi.torch.costs.costs import Costs, signature_of, traffic_of
from baechi.torch.costs.roofline import estimated
from baechi.torch.graph.graph import StepGraph, graph_of, source_of
from baechi.torch.graph.optimizers import updates_of
from step_models import module
from torch import nn

import baechi

pytestmark = pytest.mark.filterwarnings("ignore")
FLOAT = 4


def made(model: Any, example: Any, loss: Any = None, **options: Any) -> tuple[Step, StepGraph]:
    step = capture(model, example, loss)
    return step, graph_of(step, estimated(step.keys, {"gpu": "a100"}), ["gpu"], **options)


def operators(graph: StepGraph) -> dict[str, Any]:
    return {op.name: op for op in map(graph.graph.__getitem__, graph.graph.names)}


def inputs(graph: StepGraph, name: str) -> set[str]:
    return {producer for producer, _ in operators(graph)[name].inputs}


def groups(graph: StepGraph, name: str) -> set[str]:
    return set(operators(graph)[name].colocate)


@pytest.mark.parametrize("name", models.ALL)
def test_every_call_is_an_operator_and_every_tensor_is_made_by_one(name: str) -> None:
    step, graph = made(*models.made(name), models.total)
    ops = operators(graph)
    assert set(step.keys.values()) <= set(ops)
    assert {one.name for one in step.inputs if one.kind in ("weight", "buffer")} <= set(ops)
    for node, key in step.keys.items():
        sources = {source_of(read)[0] for read in node.all_input_nodes}
        known = {step.keys[s] for s in sources if s in step.keys}
        assert known <= inputs(graph, key)


def test_views_are_no_operators_and_their_readers_read_what_they_show() -> None:
    class Viewing(nn.Linear):
        def forward(self, x: Any) -> Any:
            y = super().forward(x)
            left, right = y.view(2, 2, 6).transpose(0, 1).split(3, dim=2)
            return left.exp() * right

    _, graph = made(Viewing(6, 6), torch.ones(4, 6))
    assert inputs(graph, ":exp:0") == {":addmm:0"}
    assert inputs(graph, ":mul:0") == {":exp:0", ":addmm:0"}
    assert not any(word in name for name in operators(graph) for word in ("view", "split"))


def test_tensors_of_one_call_are_told_apart_and_unread_ones_are_freed() -> None:
    class Normed(nn.LayerNorm):
        def forward(self, x: Any) -> Any:
            return super().forward(x)

    step, graph = made(nn.Sequential(nn.Linear(4, 4), Normed(4)), torch.ones(2, 4))
    ops = operators(graph)
    assert ops["1:native_layer_norm:0"].outputs == [2 * 4 * FLOAT, 2 * FLOAT, 2 * FLOAT]
    edges = ops["1:native_layer_norm_backward:0"].inputs
    assert {port for producer, port in edges if producer == "1:native_layer_norm:0"} == {1, 2}
    alone = capture(nn.LayerNorm(4).eval(), torch.ones(2, 4))
    only = operators(graph_of(alone, estimated(alone.keys, {"gpu": "a100"}), ["gpu"]))
    assert only[":native_layer_norm:0"].outputs == [2 * 4 * FLOAT]
    assert only[":native_layer_norm:0"].temporary == 2 * 2 * FLOAT
    assert step.is_training


def test_weights_stand_with_the_forward_calls_that_read_them() -> None:
    _, graph = made(*models.made("twice"), models.total)
    assert groups(graph, "middle.weight") == {"module:middle"}
    assert groups(graph, "middle:addmm:0") == {"module:middle"}
    assert groups(graph, "update:middle.bias") == {"module:middle"}
    assert groups(graph, "middle:mm:0") == set()  # its backward is sent the weight
    assert "middle.weight" in inputs(graph, "middle:mm:0")


def test_a_tied_weight_is_with_its_first_module_and_sent_to_the_others() -> None:
    _, graph = made(*models.made("tied"), models.total)
    assert groups(graph, "embedding.weight") == {"module:embedding"}
    assert groups(graph, "embedding:embedding:0") == {"module:embedding"}
    assert groups(graph, "head:mm:0") == set()
    assert "embedding.weight" in inputs(graph, "head:mm:0")


def test_with_whole_modules_all_calls_of_one_share_a_device() -> None:
    _, graph = made(*models.made("twice"), models.total, granularity="module")
    plan = baechi.place_graph(graph.graph, "3x1GiB", method="random", seed=3)
    for name in ("first.0", "first.1", "middle", "last"):
        mine = [device for op, device in plan.device_of.items() if op.startswith(f"{name}:")]
        assert len(mine) > 2
        assert len({*mine, plan.device_of[f"{name}.weight"]}) == 1


@pytest.mark.parametrize(
    ("optimizer", "kept"),
    [
        ("sgd", 0),
        ("momentum", 1),
        ("adam", 2),
        (torch.optim.AdamW, 2),
        (torch.optim.SGD, 0),
        (torch.optim.RMSprop, 1),
        (None, 0),
    ],
)
def test_updates_hold_the_state_of_the_optimizer(optimizer: Any, kept: int) -> None:
    _, graph = made(nn.Linear(6, 4), torch.ones(2, 6), optimizer=optimizer)
    update = operators(graph)["update:weight"]
    assert update.permanent == kept * 24 * FLOAT
    assert update.per_step
    assert ":mm:0" in inputs(graph, "update:weight")
    assert update.times == {"*": 0}  # the step ends with its last gradient


@pytest.mark.parametrize("by_pieces", [False, True])
def test_beside_a_host_updates_take_time_and_are_not_streamed(by_pieces: bool) -> None:
    model, example = nn.Linear(256, 256), torch.ones(2, 256)
    step, cluster = capture(model, example), baechi.Cluster("1xa100+host")
    costs = estimated(step.keys, cluster)
    for optimizer in ("adamw", "sgd"):
        ops = operators(graph_of(step, costs, cluster, optimizer, by_pieces=by_pieces))
        update, own = ops["update:weight"], 256 * 256 * FLOAT
        moved = 2 * (own + own + (2 * own if optimizer == "adamw" else 0))
        there, card = (float(baechi.roofline_time(on, 0, moved)) for on in ("cpu", "a100"))
        assert update.permanent > 0
        if by_pieces:
            share = graph_of(step, costs, cluster, optimizer, by_pieces=True).host_share
            copies = 4 if optimizer == "adamw" else 2
            copied = copies * cluster.transfer_time(own, "host:0", "a100:0")
            assert share == pytest.approx(copied / (there + copied), rel=0.3)  # and of a bias
            there *= share
            assert ops["piece:weight"].times == {"a100": pytest.approx(card * (1 - share), abs=99)}
            assert ops["piece:weight"].temporary >= moved
            card *= share  # what it keeps is updated there all the same
        times = {"a100": pytest.approx(card, abs=99), "host": pytest.approx(there, abs=99)}
        assert update.times == times


def test_optimizers_say_what_they_keep_by_their_settings() -> None:
    weight = nn.Parameter(torch.ones(6, 4))
    momentum = torch.optim.SGD([weight], lr=1.0, momentum=0.9)
    amsgrad = torch.optim.Adam([weight], amsgrad=True)
    run = torch.optim.AdamW([weight], lr=torch.tensor(0.1), fused=True, capturable=True)
    for one in (weight, weight.bfloat16(), weight.to(torch.complex128)):
        assert updates_of(run).state(one) == 2 * one.nbytes
    assert updates_of(momentum).state(weight) == 24 * FLOAT
    assert updates_of(amsgrad).state(weight) == 3 * 24 * FLOAT
    assert updates_of(torch.optim.Adafactor([weight])).state(weight) == (6 + 4) * FLOAT
    assert updates_of("adafactor").state(torch.ones(5)) == 5 * FLOAT
    assert not momentum.state
    with pytest.raises(baechi.InputError, match="optimizer: 'lion' is unknown"):
        updates_of("lion")
    with pytest.raises(baechi.InputError, match="optimizer: LBFGS says of itself"):
        updates_of(torch.optim.LBFGS)


def test_gradients_that_are_held_are_there_from_the_beginning() -> None:
    _, freed = made(nn.Linear(6, 4), torch.ones(2, 6), optimizer="sgd")
    _, held = made(nn.Linear(6, 4), torch.ones(2, 6), optimizer="sgd", held=True)
    more = operators(held)["update:weight"].permanent
    assert more - operators(freed)["update:weight"].permanent == 24 * FLOAT


def test_micro_batches_add_their_gradients_to_what_is_there() -> None:
    _, one = made(nn.Linear(64, 64), torch.ones(2, 64))
    _, four = made(nn.Linear(64, 64), torch.ones(2, 64), micro_batches=4)
    before, after = (operators(g)[":mm:0"].times["gpu"] for g in (one, four))
    assert after > before
    assert operators(one)[":addmm:0"].times == operators(four)[":addmm:0"].times


def test_a_backward_begins_behind_the_loss() -> None:
    step, graph = made(*models.made("mlp"))
    loss = next(key for key in step.keys.values() if key.startswith(f"{LOSS}:mean"))
    plan = baechi.place_graph(graph.graph, "1x1GiB", method="single")
    starts = dict(zip(graph.graph.names, plan.starts, strict=True))
    backward = [
        op.name
        for op in map(graph.graph.__getitem__, graph.graph.names)
        if op.backward and not op.per_step
    ]
    assert all(starts[name] >= starts[loss] for name in backward)


def test_calls_that_change_buffers_are_not_run_again_and_random_ones_are_marked() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5), nn.BatchNorm1d(8))
    step, graph = made(model, torch.ones(4, 8))
    again = {op.name for op in map(graph.graph.__getitem__, graph.graph.names) if op.recompute}
    random = next(key for key in step.keys.values() if key.startswith("1:"))
    assert "0:addmm:0" in again
    assert random in again  # from the state that its generator had
    assert "2:_native_batch_norm_legit_functional:0" not in again
    ops = operators(graph)
    assert ops[random].random
    assert set(ops["2:_native_batch_norm_legit_functional:0"].writes) == {
        "2.running_mean",
        "2.running_var",
    }


def clocked(step: Step) -> Costs:
    """Return the costs on the virtual clock of bench/torch_steps.py: 2 us a call, 1 GB/s."""
    costs = Costs("the virtual clock")
    for node in step.keys:
        costs.times[signature_of(node)] = {"gpu": 2000 + traffic_of(node)}
    costs.set_of_bytes("gpu", 2000 + (1 << 10), 2000 + (1 << 24))
    return costs


@functools.cache
def language_graph(name: str, samples: int, **options: Any) -> baechi.Graph:
    """Return the graph of a language model's step with so many of its sixteen samples."""
    model, example = models.language_model(name)
    part = {key: value[:samples] for key, value in example.items()}
    step = capture(model, part, models.total)
    return graph_of(step, clocked(step), ["gpu"], "sgd", **options).graph


@pytest.mark.skipif("gpt2" not in models.ALL, reason="transformers is not installed")
@pytest.mark.parametrize(
    ("name", "micro_batches", "gains"),
    [
        ("gpt2", 1, {2: 1.28}),
        ("llama", 1, {2: 1.45}),
        # With two devices 1.67 and 1.63 is all that there is: each gradient is added three times.
        ("gpt2", 4, {2: 1.65, 4: 2.9}),
        ("llama", 4, {2: 1.6, 4: 2.9}),
    ],
)
def test_plans_of_language_models_gain_by_more_devices(
    name: str, micro_batches: int, gains: dict[int, float]
) -> None:
    options: Any = {"micro_batches": micro_batches} if micro_batches > 1 else {}
    alone = language_graph(name, 16)
    one = baechi.place_graph(alone, "1x1GiB", method="single").makespan_ns
    graph = language_graph(name, 16 // micro_batches, **options)
    method = "pipeline" if options else "auto"
    for devices, gain in gains.items():
        cluster = baechi.Cluster(f"{devices}x1GiB", link="5us,10GB/s")
        plan = baechi.place_graph(graph, cluster, method, budget="4s", **options)
        assert one / plan.makespan_ns >= gain


@module(lambda: {"first": nn.Linear(4, 4), "scale": nn.Parameter(torch.tensor(2.0))})
def Bounded(self: Any, x: torch.Tensor) -> torch.Tensor:
    """Keeps a weight in bounds in place before it is used."""
    with torch.no_grad():
        self.scale.clamp_(0, 1.5)
    return self.first(x) * self.scale.exp()


def test_a_weight_that_a_forward_changes_is_updated_behind_that() -> None:
    _, graph = made(Bounded(), torch.ones(4, 4))
    assert set(operators(graph)[":clamp:0"].writes) == {"scale"}
    assert "update:scale" in graph.graph.names
