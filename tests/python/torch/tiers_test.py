# SPDX-License-Identifier: Apache-2.0
"""Tier 2: a placed model as one graph trains as the unplaced one does, or falls back to tier 1."""

from __future__ import annotations

import copy
import dataclasses
import functools
import io
import random
from typing import Any

import pytest

pytest.importorskip("torch")

import baechi.torch
import torch
from baechi.torch import tiers
from baechi.torch.capture import call_arguments
from baechi.torch.exported import export
from baechi.torch.exported_schedule import planned_order
from placement_test import ALL, built, close, loss_of, train
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch_models import CASES, exported

import baechi

GRAPHS = [name for name in ALL if name != "turns"]


def scattered(name: str, count: int = 3, seed: int = 1, **options: Any) -> Any:
    """Place every operator somewhere; for tier 2."""
    options.setdefault("devices", ["cpu"] * count)
    return baechi.torch.place(
        options.pop("model", None) or built(ALL[name]),
        ALL[name].inputs(2),
        f"{count}x1GiB",
        method=options.pop("method", "random"),
        seed=seed,
        bounds=False,
        tier=2,
        exported=[exported(name)],
        **options,
    )


@pytest.mark.parametrize("name", GRAPHS)
def test_losses_and_gradients_are_those_of_the_unplaced_model(name: str) -> None:
    case = ALL[name]
    batches = [case.inputs(n) for n in (2, 3, 2, 2, 3)]
    expected = train(built(case), batches)
    for seed, count, mode in ((1, 2, "streams"), (2, 4, "streams+order"), (3, 3, "plain")):
        model = built(case)
        weights = [id(p) for p in model.parameters()]
        optimizer = torch.optim.Adam(model.parameters(), 1e-3)
        placed = scattered(name, count, seed, model=model, mode=mode)
        close(expected, train(model, batches, optimizer))
        assert (placed.tier, placed.tier_note) == (2, "")
        assert placed.transfers > 0
        assert [id(p) for p in model.parameters()] == weights
        placed.restore()
        assert not any("forward" in vars(m) for m in model.modules())


@pytest.mark.parametrize("method", ["m-topo", "m-etf", "m-sct"])
@pytest.mark.parametrize("name", ["inception", "transformer"])
def test_planned_placements_train_the_same(name: str, method: str) -> None:
    case = CASES[name]
    batches = [case.inputs(2), case.inputs(3)]
    placed = scattered(name, 3, method=method, mode="streams+order")
    close(train(built(case), batches), train(placed.model, batches))
    assert placed.tier == 2


def test_evaluation_has_a_graph_of_its_own() -> None:
    case = CASES["resnet"]
    plain = built(case)
    placed = scattered("resnet")
    train(plain, [case.inputs(3)])
    train(placed.model, [case.inputs(3)])
    plain.eval()
    placed.model.eval()
    with torch.no_grad():
        found = placed.model(case.inputs(4))
        torch.testing.assert_close(found, plain(case.inputs(4)), rtol=1e-4, atol=1e-5)
    assert placed.tier == 2
    assert not found.requires_grad
    placed.model.train()
    close(train(plain.train(), [case.inputs(2)]), train(placed.model, [case.inputs(2)]))
    assert placed.tier == 2


def test_a_checkpoint_goes_out_and_back() -> None:
    case = CASES["lstm"]
    placed = scattered("lstm")
    before = list(built(case).state_dict())
    train(placed.model, [case.inputs(2)])
    assert list(placed.model.state_dict()) == before
    file = io.BytesIO()
    torch.save(placed.model.state_dict(), file)
    file.seek(0)
    plain = case.build()
    plain.load_state_dict(torch.load(file, map_location="cpu"))
    close(train(plain, [case.inputs(3)]), train(placed.model, [case.inputs(3)]))
    placed.model.load_state_dict(built(case).state_dict())
    close(train(built(case), [case.inputs(2)]), train(placed.model, [case.inputs(2)]))
    assert placed.tier == 2


def test_other_sizes_get_another_graph_until_they_vary_too_much() -> None:
    case = CASES["unet"]
    placed = scattered("unet")
    for size in (16, 24, 32):
        images = torch.randn(2, 3, size, size)
        torch.testing.assert_close(placed.model(images), built(case)(images), rtol=1e-4, atol=1e-5)
        assert placed.tier == 2
    assert placed.graphs == 2  # the second leaves the size of the images open


class Remembering(nn.Module):
    """Leaves something in its attributes."""

    def __init__(self, what: str) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)
        self.mean: torch.Tensor
        self.register_buffer("mean", torch.zeros(4))
        self.what, self.calls = what, 0
        self.history: list[int] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.what == "calls":
            self.calls += 1
        elif self.what == "mean":
            self.mean = self.mean / 2 + x.detach().mean(0)
        else:
            self.history.append(1)
        return self.inner(x)


class Clamp(torch.autograd.Function):
    """Rounds, and lets gradients through."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:  # noqa: ARG004
        return x.round()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:  # noqa: ARG004
        return gradients[0]


class Doing(nn.Module):
    """A model that does something special between two layers."""

    def __init__(self, special: Any) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
        self.special = special

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.special(self, self.first(x)))


def _hooked(_: Any, x: torch.Tensor) -> torch.Tensor:
    x.register_hook(lambda g: g * 2)
    return x


REFUSED = {
    "a backward of its own": (lambda _, x: Clamp.apply(x), "backward of its own"),
    "hooks on tensors": (_hooked, "register_hook"),
    "checkpointing": (lambda m, x: checkpoint(m.second, x, use_reentrant=False), "saved tensors"),
    "reentrant checkpointing": (
        lambda m, x: checkpoint(m.second, x, use_reentrant=True),
        "backward of its own",
    ),
    "a turn": (lambda _, x: x + 1 if x.sum() > 0 else x - 1, "data-dependent"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_a_graph_would_forget_runs_in_tier_1(what: str) -> None:
    special, reason = REFUSED[what]
    inputs = torch.randn(3, 4, generator=torch.Generator().manual_seed(3))
    torch.manual_seed(7)
    plain = Doing(special)
    model = copy.deepcopy(plain)
    with pytest.raises(baechi.torch.NotExportedError, match=reason):
        baechi.torch.export(model, inputs)
    placed = baechi.torch.place(
        model, inputs, "2x1GiB", method="random", bounds=False, devices=["cpu"] * 2
    )
    close(train(plain, [inputs] * 2), train(model, [inputs] * 2))
    assert placed.tier == 1
    assert reason in placed.tier_note


def _shapeless(_: Any, x: torch.Tensor) -> torch.Tensor:
    return torch.ops.baechi_tests.shapeless(x)


@functools.cache
def define_shapeless() -> None:
    def shapeless(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    shapeless.__annotations__ = {"x": torch.Tensor, "return": torch.Tensor}
    torch.library.custom_op("baechi_tests::shapeless", shapeless, mutates_args=())


# What is said of the module `special`, and the class of torch's own error.
CLAUSES = {
    "a turn": (
        lambda x: x + 1 if x.sum() > 0 else x,
        "a turn that its code takes, or a size, is data-dependent, in 'special/__bool__@2'",
        "GuardOnDataDependentSymNode",
    ),
    "a size": (
        lambda x: x.repeat(int(x.sum().abs().item()) + 1, 1),
        "a turn that its code takes, or a size, is data-dependent, behind 'special/item@2'",
        "GuardOnDataDependentSymNode",
    ),
    "an operator": (
        lambda x: x if torch.allclose(x, x * 2) else -x,
        "a turn that its code takes, or a size, is data-dependent (aten.allclose.default), in "
        "'special/allclose@1'",
        "DataDependentOutputException",
    ),
    "no shapes": (
        lambda x: _shapeless(None, x),
        "an operator is called whose shapes PyTorch cannot tell without running it "
        "(baechi_tests::shapeless), in 'special/shapeless@0'; "
        "`torch.library.register_fake` tells it",
        "RuntimeError",
    ),
    "numpy": (
        lambda x: torch.from_numpy(x.detach().numpy()),
        "tracing it fails, in 'special/numpy@1': RuntimeError: .numpy() is not supported for "
        "tensor subclasses.",
        "RuntimeError",
    ),
    "a key": (
        lambda x: {"a": x}["b"],
        "tracing it fails, behind 'first': KeyError: 'b'",
        "KeyError",
    ),
}


class Special(nn.Module):
    """A module around a function that cannot be traced."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        self.inner, self.function = nn.Identity(), function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(x)


@pytest.mark.parametrize("what", CLAUSES)
def test_a_refusal_is_one_clause_that_names_the_call(what: str) -> None:
    define_shapeless()
    function, clause, cause = CLAUSES[what]
    model = Doing(Special(function))
    model.forward = lambda x: model.second(model.special(model.first(x)))  # type: ignore[method-assign]
    with pytest.raises(baechi.torch.NotExportedError) as raised:
        baechi.torch.export(model, torch.ones(3, 4))
    assert str(raised.value) == clause
    assert type(raised.value.__cause__).__name__ == cause


@pytest.mark.parametrize("what", ["calls", "mean", "history"])
def test_what_a_forward_leaves_in_attributes_is_not_lost(what: str) -> None:
    torch.manual_seed(7)
    plain = Remembering(what)
    model = copy.deepcopy(plain)
    inputs = torch.ones(2, 4)
    with pytest.raises(baechi.torch.NotExportedError, match="changes an attribute"):
        baechi.torch.export(model, inputs)
    assert (model.calls, model.history) == (0, [])
    placed = baechi.torch.place(model, inputs, "2x1GiB", devices=["cpu"] * 2)
    model.calls, model.history = 0, []  # the recorded step counted
    close(train(plain, [inputs] * 2), train(model, [inputs] * 2))
    assert placed.tier == 1
    assert (model.calls, model.history) == (plain.calls, plain.history)
    torch.testing.assert_close(model.mean, plain.mean)


def test_tier_2_can_be_insisted_on() -> None:
    case = CASES["turns"]
    placed = baechi.torch.place(
        built(case), case.inputs(2), "2x1GiB", method="random", devices=["cpu"] * 2, tier=2
    )
    with pytest.raises(baechi.InputError, match=r"cannot run in tier 2: .*data-dependent"):
        placed.model(case.inputs(2))
    with pytest.raises(baechi.InputError, match="tier is one of"):
        scattered_with(tier=3)
    with pytest.raises(baechi.InputError, match="mode needs tier 2"):
        scattered_with(tier=1, mode="streams+order")


def scattered_with(**options: Any) -> Any:
    case = CASES["unet"]
    return baechi.torch.place(
        built(case), case.inputs(2), "2x1GiB", devices=["cpu"] * 2, bounds=False, **options
    )


def test_autocast_and_hooks_inside_run_in_tier_1_and_then_tier_2_again() -> None:
    case = CASES["transformer"]
    placed, plain = scattered("transformer"), built(case)

    def losses(model: Any) -> list[float]:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            first = loss_of(model, case.inputs(2)).item()
        return [first, loss_of(model, case.inputs(2)).item()]

    with torch.autocast("cpu", dtype=torch.bfloat16):
        placed.model(*case.inputs(2))
    assert (placed.tier, "autocast" in placed.tier_note) == (1, True)
    assert losses(placed.model) == pytest.approx(losses(plain), rel=1e-3)
    assert placed.tier == 2
    seen: list[Any] = []
    hook = placed.model.core.register_forward_hook(lambda *_: seen.append(1))
    placed.model(*case.inputs(2))
    assert (placed.tier, len(seen)) == (1, 1)
    hook.remove()
    placed.model(*case.inputs(2))
    assert placed.tier == 2
    placed.model.register_forward_hook(lambda *_: seen.append(2))
    placed.model(*case.inputs(2))
    assert (placed.tier, seen) == (2, [1, 2])


def test_gradient_scaling_and_frozen_weights() -> None:
    case = CASES["inception"]

    def steps(model: Any) -> tuple[list[float], list[Any]]:
        model.head.weight.requires_grad_(False)
        optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], 0.1)
        scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
        losses = []
        for size in (2, 3, 2):
            optimizer.zero_grad()
            loss = loss_of(model, case.inputs(size))
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            scaler.step(optimizer)
            scaler.update()
            losses.append(loss.item())
        return losses, [p.grad for p in model.parameters()]

    placed = scattered("inception")
    close(steps(built(case)), steps(placed.model))
    assert placed.model.head.weight.grad is None
    assert placed.tier == 2


class Changing(nn.Module):
    """Changes in place what others read, through views and after it was sent."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.readers = nn.ModuleList(nn.Linear(4, 4) for _ in range(4))
        self.register_buffer("seen", torch.zeros(4))

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        x = torch.tanh(self.first(x)) * 1
        early = self.readers[0](x)
        view = x[:, :2]
        with torch.no_grad():
            self.seen += x.mean(0)
        x = x.clone() + 0
        early = early + x.sum(1, keepdim=True)
        late = x[:, 2:]
        late.mul_(2)
        early = early + x.sum(1, keepdim=True)
        x.add_(1)
        middle = self.readers[1](x) + self.readers[2](x).relu_()
        return {"all": early + middle + self.seen, "view": self.readers[3](x)[:, :2] + view}


def changing() -> Any:
    torch.manual_seed(7)
    return Changing()


@functools.cache
def changing_graph() -> Any:
    return baechi.torch.export(changing(), torch.randn(2, 4))


def changing_placed(seed: int, **options: Any) -> Any:
    options.setdefault("devices", ["cpu"] * 3)
    return baechi.torch.place(
        changing(),
        torch.randn(2, 4),
        "3x1GiB",
        method="random",
        seed=seed,
        bounds=False,
        tier=2,
        exported=[changing_graph()],
        **options,
    )


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("mode", ["plain", "streams", "streams+order"])
def test_changes_in_place_are_seen_by_those_who_read_later(seed: int, mode: str) -> None:
    batches = [torch.randn(n, 4, generator=torch.Generator().manual_seed(n)) for n in (2, 3, 2)]
    plain, placed = changing(), changing_placed(seed, mode=mode)
    close(train(plain, batches), train(placed.model, batches))
    assert placed.tier == 2
    torch.testing.assert_close(placed.model.seen.cpu(), plain.seen)


def test_returned_objects_are_those_of_the_model() -> None:
    if "gpt2" not in ALL:
        pytest.skip("transformers is not installed")
    case = ALL["gpt2"]
    args, kwargs = call_arguments(case.inputs(2))
    plain, placed = built(case), scattered("gpt2")
    expected, found = plain(*args, **kwargs), placed.model(*args, **kwargs)
    assert placed.tier == 2
    assert type(found) is type(expected)
    assert list(found) == list(expected)
    assert found.past_key_values.get_seq_length() == expected.past_key_values.get_seq_length()
    torch.testing.assert_close(
        found.past_key_values.layers[1].keys, expected.past_key_values.layers[1].keys
    )


class Branches(nn.Module):
    """Branches of different lengths, each of which draws random numbers at its end."""

    def __init__(self) -> None:
        super().__init__()
        self.branches = nn.ModuleList(
            nn.Sequential(*(nn.Linear(8, 8) for _ in range(n)), nn.Dropout(0.5))
            for n in (5, 1, 3, 1)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([branch(x) for branch in self.branches], 1)


def in_conflict(graph: Any, a: Any, b: Any) -> bool:
    """Whether `b` of the program has to stay behind `a`."""

    def seen(node: Any) -> set[int]:
        return {s for r in node.reads for s in graph.nodes[r].storages} | set(node.storages)

    def changed(node: Any) -> set[int]:
        return {s for w in node.writes for s in graph.nodes[w].storages}

    both = changed(a) & seen(b) | seen(a) & changed(b)
    return bool(both) or a.index in b.reads or (a.random and b.random)


def _start(starts: dict[int, int], node: Any) -> int | None:
    return starts.get(node.index)


@pytest.mark.parametrize("kind", ["branches", "changing"])
def test_any_planned_order_keeps_data_changes_and_random_numbers(kind: str) -> None:
    torch.manual_seed(7)
    inputs = torch.ones(4, 8)
    exported = changing_graph() if kind == "changing" else baechi.torch.export(Branches(), inputs)
    graph = exported.graph
    pairs = [
        (a.index, b.index)
        for b in graph.nodes
        for a in graph.nodes[: b.index]
        if in_conflict(graph, a, b)
    ]
    other = 0
    for seed in range(30):
        chance = random.Random(seed)
        starts = {node.index: chance.randrange(50) for node in graph.nodes if chance.random() < 0.8}
        start_of = functools.partial(_start, starts)
        order = planned_order(graph, start_of, lambda _: 0)
        assert sorted(order) == [node.index for node in graph.nodes]
        place = {n: i for i, n in enumerate(order)}
        assert all(place[a] < place[b] for a, b in pairs), seed
        other += order != sorted(order)
    assert other > 20


@pytest.mark.parametrize("mode", ["streams", "streams+order"])
def test_random_numbers_are_those_of_the_unplaced_model(mode: str) -> None:
    inputs = torch.ones(4, 8)
    results = []
    for where in ("plain", "placed"):
        torch.manual_seed(7)
        model = Branches()
        if where == "placed":
            options: dict[str, Any] = {
                "method": "random",
                "seed": 2,
                "bounds": False,
                "tier": 2,
                "mode": mode,
            }
            baechi.torch.place(model, inputs, "4x1GiB", devices=["cpu"] * 4, **options)
        torch.manual_seed(11)
        results.append(train(model, [inputs] * 3))
    close(*results)


@dataclasses.dataclass
class Found:
    """Nested outputs, one of them no tensor."""

    parts: dict[str, list[Any]]
    name: str = "found"


class Nested(nn.Module):
    """Takes and returns nested containers and numbers; computes a weight from others."""

    def __init__(self) -> None:
        super().__init__()
        self.left = nn.utils.parametrizations.weight_norm(nn.Linear(4, 4))
        self.right = nn.Linear(4, 4)

    def forward(self, batch: dict[str, Any], *, scale: float = 1.0) -> Found:
        left = self.left(batch["pair"][0])
        right = self.right(batch["pair"][1]) * scale
        return Found({"both": [left + right, None], "right": [right]})


def test_nested_arguments_and_outputs_and_numbers_that_vary() -> None:
    def call(scale: float) -> dict[str, Any]:
        return {"batch": {"pair": (torch.ones(2, 4), torch.ones(2, 4) / 2)}, "scale": scale}

    torch.manual_seed(7)
    model = Nested()
    plain = copy.deepcopy(model)
    placed = baechi.torch.place(
        model, call(1.0), "2x1GiB", method="random", bounds=False, devices=["cpu"] * 2
    )
    for number in range(20):
        expected, found = plain(**call(number / 4)), model(**call(number / 4))
        assert isinstance(found, Found)
        assert found.parts["both"][1] is None
        torch.testing.assert_close(found.parts["both"][0], expected.parts["both"][0])
        torch.testing.assert_close(found.parts["right"][0], expected.parts["right"][0])
    assert placed.graphs == 16  # each number has a graph of its own, up to a limit
    assert (placed.tier, placed.tier_note) == (1, "its arguments vary too much")


class Turning(Nested):
    """Takes a turn by its data, so that it has no graph."""

    def forward(self, batch: dict[str, Any], *, scale: float = 1.0) -> Found:
        if batch["pair"][0].sum() > 1e9:
            scale = -scale
        return super().forward(batch, scale=scale)


def test_graphs_that_cannot_be_had_are_not_tried_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    tried = 0

    def counted(*args: Any, **kwargs: Any) -> Any:
        nonlocal tried
        tried += 1
        return export(*args, **kwargs)

    monkeypatch.setattr(tiers, "export", counted)
    inputs = {"batch": {"pair": (torch.ones(2, 4), torch.ones(2, 4))}, "scale": 1.0}
    placed = baechi.torch.place(
        Turning(), inputs, "2x1GiB", method="random", bounds=False, devices=["cpu"] * 2
    )
    for number in range(20):
        placed.model(**{**inputs, "scale": number / 4})
    assert tried == 15  # of sixteen; `place` tried the first
    assert "data-dependent" in placed.tier_note


@pytest.mark.usefixtures("sim")
def test_a_graph_is_made_while_there_are_gradients_on_a_device() -> None:
    model, x = nn.Linear(4, 4).to("sim:0"), torch.ones(2, 4, device="sim:0")
    model(x).sum().backward()
    gradients = [p.grad for p in model.parameters()]
    baechi.torch.export(model, x)
    for parameter, gradient in zip(model.parameters(), gradients, strict=True):
        assert parameter.grad is gradient
        assert gradient is not None
        assert gradient.device.type == parameter.device.type == "sim"


def test_gradients_reach_the_inputs_and_steps_may_overlap() -> None:
    case = CASES["inception"]
    plain, placed = built(case), scattered("inception")
    gradients = []
    for model in (plain, placed.model):
        images = [case.inputs(n).requires_grad_() for n in (2, 3)]
        losses = [loss_of(model, x) for x in images]  # two forwards before any backward
        (losses[0] * losses[1]).backward()
        gradients.append([x.grad for x in images] + [p.grad for p in model.parameters()])
    for a, b in zip(*gradients, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)
    assert placed.tier == 2


def test_a_model_that_is_one_unit_has_a_graph_too() -> None:
    torch.manual_seed(7)
    model, inputs = nn.Linear(4, 4), torch.ones(2, 4)
    expected = model(inputs)
    placed = baechi.torch.place(model, inputs, "2x1GiB", devices=["cpu"] * 2, tier=2)
    torch.testing.assert_close(model(inputs), expected)
    assert (placed.tier, placed.graphs) == (2, 1)
    placed.restore()
    torch.testing.assert_close(model(inputs), expected)


def test_graphs_are_kept_over_a_restore() -> None:
    case = CASES["unet"]
    placed = scattered("unet")
    with torch.no_grad():
        placed.model(case.inputs(2))
    assert placed.graphs == 2
    assert placed.verify(case.inputs(2))
    assert placed.graphs == 2
