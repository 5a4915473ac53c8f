# SPDX-License-Identifier: Apache-2.0
"""Steps: captured with shapes only, under names that agree with those of what runs."""

from __future__ import annotations

import collections
import gc
import inspect
import types
import weakref
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import step_models as models
import torch
from baechi.torch.capture.joint import flags
from baechi.torch.capture.keys import (
    base_of,
    is_call,
    is_move,
    is_view,
    keys_of,
    module_path,
    outside_of,
)
from baechi.torch.capture.step import LOSS, Step
from baechi.torch.capture.trace import capture
from torch import fx, nn
from torch._dynamo.backends.common import aot_autograd

import baechi

pytestmark = pytest.mark.filterwarnings("ignore")


class Seen(Exception):
    """The joint graph was looked at; there is no need to run it."""


def _never(*_: Any) -> Any:
    raise AssertionError("nothing is compiled")


def keys_of_compiled(
    model: nn.Module, example: dict[str, Any], called: Callable[..., Any] | None = None
) -> list[set[str]]:
    """Return the keys of the joint graphs that torch.compile makes of a model, or what calls it."""
    names = {id(module): name for name, module in model.named_modules()}
    found = []

    def partition(joint: fx.GraphModule, *_: Any, **__: Any) -> Any:
        outside = outside_of(joint.graph, names)
        keys = keys_of(joint.graph, lambda n: module_path(n, names), outside)
        found.append(set(keys.values()))
        raise Seen

    torch._dynamo.reset()
    backend = aot_autograd(fw_compiler=_never, bw_compiler=_never, partition_fn=partition)
    with torch._dynamo.config.patch(**flags()), pytest.raises(Exception, match="Seen"):
        torch.compile(called or model, backend=backend)(**example)
    torch._dynamo.reset()
    return found


@pytest.mark.parametrize("name", models.ALL)
def test_keys_of_a_step_are_those_of_the_compiled_model(name: str) -> None:
    model, example = models.made(name)
    step = capture(model, example, models.total)
    planned = {key for key in step.keys.values() if not key.startswith(LOSS)}
    (compiled,) = keys_of_compiled(model, example)
    assert len(planned) == sum(1 for key in step.keys.values() if not key.startswith(LOSS))
    assert planned <= compiled
    more = [key.split(":")[1] for key in compiled - planned]
    assert more in ([], ["_to_copy.1+"])  # a gradient comes by what stands beside the loss, too


@pytest.mark.parametrize("name", ["mlp", "twice", "tied"])
def test_keys_agree_where_a_function_calls_the_model(name: str) -> None:
    model, example = models.made(name)
    step = capture(model, example, models.total)
    compiled = keys_of_compiled(model, example, lambda **given: models.total(model(**given)))
    assert compiled == [set(step.keys.values())]


def test_keys_name_the_module_of_a_backward_and_of_sums_of_gradients() -> None:
    model, example = models.made("twice")
    keys = set(capture(model, example, models.total).keys.values())
    assert {"first.0:addmm:0", "last:addmm:0", "last:addmm:1", ":add:0"} <= keys
    assert {"first.0:mm:0", "last:mm:3", "first.1:native_batch_norm_backward:0"} <= keys
    assert {"last:mm.3+:0", "last:sum.1+:0"} <= keys  # what its two calls say of `last`'s weights
    assert "last:mm.2+:0" in keys  # of the gradient of what `last` and `middle` read


@models.module(lambda: {"first": nn.Linear(8, 8), "last": nn.Linear(8, 8)})
def InPlace(self: Any, x: torch.Tensor) -> torch.Tensor:
    h = self.first(x).clone()
    h[1:3].mul_(2)
    return self.last(torch.tanh(h))


def test_what_autograd_calls_for_a_change_in_place_is_of_a_module_and_not_of_the_loss() -> None:
    model, example = InPlace(), {"x": torch.randn(4, 8)}
    keys = capture(model, example, models.total).keys.values()
    assert {":copy:0", ":slice_scatter:1"} <= set(keys)  # of the backward of what reads `h`
    (compiled,) = keys_of_compiled(model, example)
    assert {key for key in keys if not key.startswith(LOSS)} <= compiled


def test_a_step_says_what_its_inputs_and_outputs_are() -> None:
    model, example = models.made("twice")
    step = capture(model, example, nn.functional.cross_entropy, torch.zeros(6, dtype=torch.int64))
    inputs = collections.Counter(one.kind for one in step.inputs)
    outputs = collections.Counter(one.kind for one in step.outputs)
    weights = dict(model.named_parameters())
    assert inputs == {"weight": len(weights), "buffer": 3, "batch": 2, "tangent": 1}
    assert [one.name for one in step.inputs if one.kind == "batch"] == ["x", "targets"]
    assert {one.name for one in step.inputs if one.kind == "weight"} == set(weights)
    assert outputs["gradient"] == len(weights)
    assert outputs["buffer"] == 3
    assert outputs["loss"] == 1
    for one, node in zip(step.inputs, step.placeholders(), strict=True):
        if one.kind == "weight":
            assert node.meta["val"].shape == weights[one.name].shape
    for result, node in zip(step.outputs, step.results(), strict=True):
        if result.kind == "gradient":
            assert node.meta["val"].shape == weights[result.name].shape


def test_a_model_in_evaluation_gives_its_forward_alone() -> None:
    model, example = models.made("twice")
    step = capture(model.eval(), example)
    assert not step.is_training
    assert [one.kind for one in step.outputs] == ["output"]
    assert not any("backward" in key for key in step.keys.values())


def _all_of(model: nn.Module) -> Any:
    modules = [
        (m, dict(vars(m)), dict(m._parameters), dict(m._buffers), list(m._forward_hooks))
        for m in model.modules()
    ]
    return modules, {name: id(t) for name, t in model.state_dict(keep_vars=True).items()}


@models.module(lambda: {"lstm": nn.LSTM(4, 4)})
def Broken(_: Any, x: Any) -> Any:
    raise ValueError(f"not with {x.shape}")


@pytest.mark.parametrize("fails", [False, True])
def test_a_model_is_as_before_when_it_was_captured_or_could_not_be(fails: bool) -> None:
    model, example = models.made("lstm")
    if fails:
        model, example = Broken(), {"x": torch.zeros(2, 3, 4)}
    before, weights = _all_of(model), [p.clone() for p in model.parameters()]
    state = torch.get_rng_state()
    if fails:
        with pytest.raises(baechi.InputError, match="model: "):
            capture(model, example)
    else:
        capture(model, example, models.total)
    assert _all_of(model) == before
    assert all(torch.equal(p, w) for p, w in zip(model.parameters(), weights, strict=True))
    assert torch.equal(torch.get_rng_state(), state)
    assert all(p.grad is None for p in model.parameters())


def test_nothing_keeps_a_model_or_its_class_that_was_captured() -> None:
    """As dynamo does: what the class and the loss see, all of a script, would end with Python."""

    class Doubled(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return 2 * super().forward(x)

    def loss(output: torch.Tensor) -> torch.Tensor:
        return output.mean()

    assert capture(Doubled(2, 2), torch.ones(1, 2), loss).is_training
    known = weakref.ref(Doubled), weakref.ref(loss)
    del Doubled, loss
    gc.collect()
    assert [one() for one in known] == [None, None]


def test_a_model_on_the_meta_device_gives_the_same_step() -> None:
    name = "gpt2" if "gpt2" in models.ALL else "block"
    step = capture(*models.made(name), models.total)
    with torch.device("meta"):
        away, example = models.made(name)
    assert all(p.is_meta for p in away.parameters())
    assert str(capture(away, example, models.total)) == str(step)
    assert all(node.meta["val"].device.type == "cpu" for node in step.placeholders())


def test_a_model_too_large_for_every_device_is_captured() -> None:
    with torch.device("meta"):
        model = nn.Sequential(*(nn.Linear(1 << 17, 1 << 17) for _ in range(4)))
    step = capture(model, torch.empty(8, 1 << 17, device="meta"))
    assert sum(one.kind == "gradient" for one in step.outputs) == 8


def test_tied_weights_are_one_input_with_two_names() -> None:
    model, example = models.made("tied")
    step = capture(model, example, models.total)
    assert step.tied == {"head.weight": "embedding.weight"}
    names = [one.name for one in step.inputs if one.kind == "weight"]
    assert sorted(names) == ["embedding.weight", "middle.bias", "middle.weight"]


@pytest.mark.parametrize(
    ("loss", "word"), [(None, "mean"), (lambda output: output.square().sum(), "pow")]
)
def test_a_loss_is_given_or_the_mean_of_what_comes_out(
    loss: Callable[[Any], Any] | None, word: str
) -> None:
    step = capture(nn.Linear(3, 3), torch.ones(2, 3), loss)
    assert any(key.startswith(f"{LOSS}:{word}") for key in step.keys.values())


def test_a_model_that_gives_nothing_to_train_is_refused() -> None:
    class Detached(nn.Linear):
        def forward(self, x: Any) -> Any:
            return super().forward(x).detach()

    with pytest.raises(baechi.InputError, match="loss: nothing that the model returns"):
        capture(Detached(3, 3), torch.ones(2, 3))


def _graph(made: Callable[..., Any], *given: Any) -> list[fx.Node]:
    from torch.fx.experimental.proxy_tensor import make_fx

    return [n for n in make_fx(made)(*given).graph.nodes if n.op == "call_function"]


def test_views_have_the_memory_of_their_base() -> None:
    def made(x: Any) -> Any:
        y = x.mul(2)
        first, _ = y.view(2, 2, 3).transpose(0, 1).split(1)
        return first.exp()

    nodes = _graph(made, torch.ones(4, 3))
    calls = [n for n in nodes if is_call(n)]
    assert [n.target for n in calls] == [torch.ops.aten.mul.Tensor, torch.ops.aten.exp.default]
    assert {base_of(n) for n in nodes if is_view(n)} == {calls[0]}


def test_moves_change_the_device_and_nothing_else() -> None:
    def made(x: Any) -> Any:
        return x.to("meta"), x.to("meta", torch.float64), x.to(torch.float64), x.clone()

    nodes = _graph(made, torch.ones(4, 3))
    assert [is_move(n) for n in nodes] == [True, False, False, False]
    assert sorted(keys_of(nodes[0].graph, lambda _: None).values()) == [
        ":_to_copy:0",
        ":_to_copy:1",
        ":clone:0",
    ]


def test_a_step_is_written_a_call_a_line() -> None:
    step: Step = capture(nn.Linear(3, 2), torch.ones(4, 3))
    assert str(step).splitlines()[:5] == [
        "weight weight: float32[2, 3]",
        "weight bias: float32[2]",
        "batch 0: float32[4, 3]",
        "tangent loss: float32[]",
        ":addmm:0: float32[4, 2]",
    ]


class Noting(nn.Module):
    """Keeps what it saw; maybe in what dynamo does not follow."""

    def __init__(self, followed: bool) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 4), nn.Linear(4, 4)
        self.seen: list[Any] = []
        self.calls, self.followed = 0, followed

    def note(self, x: Any) -> Any:
        self.seen.append(x)
        self.calls += 1
        self.latest = x.relu()
        return self.latest

    apart = torch._dynamo.disable(note)

    def forward(self, x: Any) -> Any:
        return self.last((self.note if self.followed else self.apart)(self.first(x)))


@pytest.mark.parametrize(("followed", "by"), [(True, "dynamo"), (False, "a run on shapes")])
def test_what_a_forward_does_beside_computing_is_not_done(followed: bool, by: str) -> None:
    model = Noting(followed)
    before = _all_of(model)
    step = capture(model, torch.ones(2, 4))
    assert step.made_by == by
    assert {"first:addmm:0", ":relu:0", ":threshold_backward:0", "last:mm:0"} <= {
        *step.keys.values()
    }
    assert _all_of(model) == before
    assert (model.seen, model.calls) == ([], 0)
    with torch.device("meta"):
        away = Noting(followed)
    assert str(capture(away, torch.ones(2, 4))) == str(step)


@pytest.mark.parametrize("name", [n for n in models.ALL if n not in ("gpt2", "llama")])
def test_a_run_on_shapes_gives_the_keys_that_dynamo_gives(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, example = models.made(name)
    wanted = capture(model, example, models.total)

    def fails(*_: Any) -> Any:
        raise RuntimeError

    monkeypatch.setitem(
        inspect.unwrap(capture).__globals__["joint_of"].__globals__, "_by_dynamo", fails
    )
    step = capture(model, example, models.total)
    assert step.made_by == "a run on shapes"
    assert set(step.inputs) == set(wanted.inputs)
    assert set(step.outputs) == set(wanted.outputs)
    keys, known = set(step.keys.values()), set(wanted.keys.values())
    assert keys == known or (name == "tied" and keys ^ known == {"embedding:add:0", "head:add:0"})


@models.module(
    lambda: {"router": nn.Linear(4, 2), "experts": nn.ModuleList(nn.Linear(4, 4) for _ in range(2))}
)
def Experts(self: Any, x: Any) -> Any:
    chosen, out = self.router(x).argmax(-1), torch.zeros_like(x)
    for number, expert in enumerate(self.experts):
        rows = (chosen == number).nonzero()[:, 0]
        if len(rows):
            out = out.index_add(0, rows, expert(x[rows]))
    return out


def test_what_values_decide_is_what_they_decided_in_one_run() -> None:
    torch.manual_seed(0)
    model, x = Experts(), torch.tensor([[9.0, 0, 0, 0], [-9.0, 0, 0, 0], [-8.0, 0, 0, 0]])
    model.router.weight.data = torch.tensor([[1.0, 0, 0, 0], [-1.0, 0, 0, 0]])
    step = capture(model, x)
    assert step.made_by == "a recording of values"
    rows = {
        key: tuple(node.meta["val"].shape)
        for node, key in step.keys.items()
        if key.startswith("experts.") and key.endswith(":addmm:0")
    }
    assert rows == {"experts.0:addmm:0": (1, 4), "experts.1:addmm:0": (2, 4)}
    with pytest.raises(baechi.InputError, match="its shapes alone do not decide what it does"):
        capture(model.to("meta"), x)


class Spoken(nn.Module):
    """Ends in a loss whose kernel cannot say the shape of its result beforehand."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 5)
        self.calls, self.held = 0, types.SimpleNamespace(scale=torch.ones(8))

    def forward(self, x: Any, labels: Any) -> Any:
        self.calls += 1
        hidden = self.norm(self.first(x)).relu_() * self.held.scale
        scores = self.last(hidden).log_softmax(-1)
        sizes = torch.full((2,), 6), torch.full((2,), 2)
        return nn.functional.ctc_loss(scores.view(6, 2, 5), labels, *sizes)


def test_what_no_tracer_follows_is_recorded_on_one_run() -> None:
    torch.manual_seed(0)
    model, example = Spoken(), {"x": torch.randn(12, 4), "labels": torch.ones(2, 2).long()}
    before, weights = _all_of(model), {k: v.clone() for k, v in model.state_dict().items()}
    state = torch.get_rng_state()
    step = capture(model, example)
    assert step.made_by == "a recording of values"
    keys = list(step.keys.values())
    forward = ["first:addmm:0", "norm:native_batch_norm:0", ":relu:0", "last:addmm:0"]
    assert [key for key in keys if key in forward] == forward
    scaled = next(node for node, key in step.keys.items() if key == ":mul:0")
    assert [one.meta["val"].shape for one in scaled.all_input_nodes] == [(12, 8), (8,)]
    backward = [":_ctc_loss_backward:0", "last:mm:0", ":threshold_backward:0", "first:mm:0"]
    assert [key for key in keys if key in backward] == backward
    kinds = collections.Counter(one.kind for one in step.outputs)
    assert kinds == {"loss": 1, "gradient": 6, "buffer": 1}
    assert _all_of(model) == before
    assert model.calls == 0
    assert all(torch.equal(v, weights[k]) for k, v in model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), state)


def test_modules_that_are_frozen_stay_so() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4).eval())
    step = capture(model, torch.ones(2, 4))
    assert not model[1].training
    assert not any(one.kind == "buffer" for one in step.outputs)


def test_a_tensor_that_a_module_only_holds_is_brought_along() -> None:
    @models.module(
        lambda: {"scale": torch.ones(3, device="meta"), "inner": nn.Linear(3, 3, device="meta")}
    )
    def Holding(self: Any, x: Any) -> Any:
        return self.inner(x * self.scale)

    model = Holding()
    assert capture(model, torch.ones(2, 3)).is_training
    assert model.scale.device.type == "meta"


def test_options_and_numbers_in_the_example_have_their_places() -> None:
    class Mixed(nn.Linear):
        def forward(self, x: Any, *, power: int, more: Any) -> Any:
            return super().forward(x) ** power + more["bias"][1]

    more = {"bias": [None, torch.ones(3)]}
    example = {"x": torch.ones(2, 3), "power": 3, "more": more}
    step = capture(Mixed(3, 3), example)
    assert [i.name for i in step.inputs if i.kind == "batch"] == ["x", "more.bias.1"]


@pytest.mark.parametrize("training", [True, False])
def test_a_captured_model_is_let_go(training: bool) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4)).train(training)
    step = inspect.unwrap(capture)(model, torch.ones(2, 4))
    gone = weakref.ref(model)
    del model
    gc.collect()
    assert gone() is None
    assert step.keys


def test_what_torch_export_saved_is_a_model(tmp_path: Path) -> None:
    model, example = models.made("mlp")
    x = example["input"]
    saved = torch.export.export(model, (x,), dynamic_shapes=({0: torch.export.Dim("batch")},))
    torch.export.save(saved, tmp_path / "model.pt2")
    again = torch.export.load(tmp_path / "model.pt2").module()
    steps = [capture(one, torch.cat([x, x])) for one in (model, again)]
    assert steps[1].made_by == "dynamo"
    calls = [Counter(key.split(":")[-2] for key in step.keys.values()) for step in steps]
    assert calls[0] == calls[1]
    weights = [{i.name for i in step.inputs if i.kind == "weight"} for step in steps]
    assert weights[0] == weights[1]
