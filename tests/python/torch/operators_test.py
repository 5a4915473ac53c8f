# SPDX-License-Identifier: Apache-2.0
"""Graphs whose operators are single aten calls: recorded, planned, and run as planned."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch")

import baechi.torch
import torch
from baechi.torch.cost.graph_generator import graph_of
from baechi.torch.cost.profiler import estimate
from baechi.torch.memory.eager import peak_memory
from baechi.torch.placing import place_with
from baechi.torch.trace.operators import kept_together, module_devices
from torch_models import ALL, CASES, built, exported
from training_steps import close, train

import baechi

GRAPHS = [name for name in ALL if name != "turns"]


def by_operators(name: str, **options: Any) -> Any:
    options = {"method": "random", "mode": "streams", "tier": 2, **options}
    return place_with(
        [exported(name)],
        built(ALL[name]),
        ALL[name].inputs(2),
        cluster="3x1GiB",
        bounds=False,
        devices=["cpu"] * 3,
        level="operator",
        **options,
    )


@pytest.mark.repeats
@pytest.mark.parametrize("name", GRAPHS)
def test_operators_run_where_they_are_planned(name: str) -> None:
    case = ALL[name]
    batches = [case.inputs(2), case.inputs(3)]
    placed = by_operators(name, mode="streams+order" if name == "t5" else "streams")
    expected = train(built(case), batches)
    close(expected, train(placed.model, batches))
    assert placed.tier == 2
    nodes = {node.key for node in exported(name).graph.nodes}
    planned = set(placed.plan.graph.names)
    assert len(nodes & planned) > 10
    # What the graph does not cover runs in tier 1, by what that means for modules.
    case_batches = [case.inputs(2)]
    placed.model.load_state_dict(built(case).state_dict())
    hook = next(iter(placed.model.children())).register_forward_hook(lambda *_: None)
    close(train(built(case), case_batches), train(placed.model, case_batches))
    assert placed.tier == 1
    hook.remove()


def test_the_recorded_calls_are_those_of_the_eager_model() -> None:
    """The same work is done, whatever the operators are called."""
    case = CASES["unet"]
    modules = baechi.torch.capture(built(case), case.inputs(2))
    calls = baechi.torch.capture(built(case), case.inputs(2), units=exported("unet"))
    assert [op.kind for op in calls.ops if not op.key.startswith(">loss/")].count("conv2d") == 6
    for direction in ("forward", "backward"):
        flops = [sum(getattr(op, direction).flops for op in c.ops) for c in (modules, calls)]
        assert flops[0] == flops[1] > 0
    assert modules.weights == calls.weights
    saved = [
        sum(c.tensors[t].bytes for t in {t for op in c.ops for t in op.saved})
        for c in (modules, calls)
    ]
    assert saved[0] == saved[1]
    assert sum(o.grads for o in calls.ops) > 10


def test_operators_are_estimated_measured_and_planned() -> None:
    case = CASES["transformer"]
    model = built(case)
    units = exported("transformer")
    captured = baechi.torch.capture(model, case.inputs(2), units=units)
    estimated = estimate(captured, {"gpu": "rtx2080"})
    measured = baechi.torch.measure(
        model, case.inputs(2), captured, units=units, repeats=1, warm_up=0
    )
    assert estimated.ops.keys() == measured.ops.keys()
    linear = next(k for k in estimated.ops if k.startswith("core.encoder.layers.0.linear1:"))
    for costs in (estimated, measured):
        assert all(t > 0 for t in costs.ops[linear].forward.values())
        assert all(t > 0 for t in costs.ops[linear].backward.values())
        assert costs.ops[linear].parameters > 0
        assert costs.ops[linear].saved + costs.ops[linear].outputs > 0
    together = kept_together(units, captured)
    graph = graph_of(captured, estimated, together=together).graph
    plan = baechi.place_graph(graph, "2x1GiB", "m-etf", bounds=False)
    attention = [k for k in plan.device_of if k.startswith("core.encoder.layers.0.self_attn:")]
    heavy = {plan.device_of[k] for k in attention if ":linear" in k and "backward" not in k}
    assert len(heavy) == 1  # both weights of an attention are one module's
    modules = baechi.torch.capture(model, case.inputs(2))
    devices = module_devices(units, modules, plan.device_of)
    assert devices["core.encoder.layers.0.self_attn"] in heavy


def test_without_a_graph_modules_are_planned() -> None:
    case = CASES["turns"]
    model = built(case)
    with pytest.warns(UserWarning, match="planned by modules: .*data-dependent"):
        placed = baechi.torch.place(
            model, case.inputs(2), "2x1GiB", devices=["cpu"] * 2, level="operator"
        )
    close(train(built(case), [case.inputs(2)]), train(model, [case.inputs(2)]))
    assert placed.tier == 1
    with pytest.raises(baechi.InputError, match="level is one of"):
        baechi.torch.place(model, case.inputs(2), "2x1GiB", devices=["cpu"] * 2, level="kernel")


def test_a_graph_records_only_what_it_was_exported_for() -> None:
    case = CASES["unet"]
    with pytest.raises(baechi.InputError, match="exported for other arguments"):
        baechi.torch.capture(built(case), torch.randn(2, 3, 24, 24), units=exported("unet"))


def test_memory_of_operators_is_that_of_modules_on_one_device() -> None:
    case = CASES["resnet"]
    peaks = []
    for units in ("leaf", exported("resnet")):
        captured = baechi.torch.capture(built(case), case.inputs(8), units=units)
        device_of = dict.fromkeys((op.key for op in captured.ops), "d")
        peaks.append(peak_memory(captured, device_of)["d"])
    assert peaks[1] == pytest.approx(peaks[0], rel=0.03)
