# SPDX-License-Identifier: Apache-2.0
"""Tier 2: a placed model as one graph trains as the unplaced one does, or falls back to tier 1."""

from __future__ import annotations

import copy
import io
import re
from typing import Any

import pytest

pytest.importorskip("torch")

import baechi.torch
import torch
from baechi.torch import planning
from baechi.torch.memory.fit import peaks_by_tier
from baechi.torch.placing import assign
from baechi.torch.record.capture import call_arguments
from baechi.torch.run import graphs
from baechi.torch.trace import surroundings
from baechi.torch.trace.exported import export
from random_placement import placed_at_random, scattered_graph
from torch import nn
from torch_models import ALL, CASES, built
from training_steps import close, loss_of, train

import baechi

GRAPHS = [name for name in ALL if name != "turns"]


@pytest.mark.repeats
@pytest.mark.parametrize("name", GRAPHS)
def test_losses_and_gradients_are_those_of_the_unplaced_model(name: str) -> None:
    case = ALL[name]
    batches = [case.inputs(n) for n in (2, 3, 2, 2, 3)]
    expected = train(built(case), batches)
    for seed, count, mode in ((1, 2, "streams"), (2, 4, "streams+order"), (3, 3, "plain")):
        model = built(case)
        weights = [id(p) for p in model.parameters()]
        optimizer = torch.optim.Adam(model.parameters(), 1e-3)
        placed = scattered_graph(name, count, seed, model=model, mode=mode)
        close(expected, train(model, batches, optimizer))
        assert (placed.tier, placed.tier_note) == (2, "")
        assert placed.transfers > 0
        assert [id(p) for p in model.parameters()] == weights
        placed.restore()
        assert not any("forward" in vars(m) for m in model.modules())


@pytest.mark.repeats
@pytest.mark.parametrize("method", ["m-topo", "m-etf", "m-sct"])
@pytest.mark.parametrize("name", ["inception", "transformer"])
def test_planned_placements_train_the_same(name: str, method: str) -> None:
    case = CASES[name]
    batches = [case.inputs(2), case.inputs(3)]
    placed = scattered_graph(name, 3, method=method, mode="streams+order")
    close(train(built(case), batches), train(placed.model, batches))
    assert placed.tier == 2


class Attention(nn.Module):
    """Attention whose result is contiguous on the CPU as it comes, as it is not elsewhere."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(16, 48)
        self.out = nn.Linear(16, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Attend over the first dimension."""
        length, batch, _ = x.shape
        heads = (t.view(length, batch, 2, 8).permute(1, 2, 0, 3) for t in self.qkv(x).chunk(3, -1))
        y = nn.functional.scaled_dot_product_attention(*heads)
        return self.out(y.permute(2, 0, 1, 3).contiguous().view(length * batch, 16))


@pytest.mark.usefixtures("sim")
def test_a_graph_runs_where_kernels_lay_out_memory_otherwise_than_on_the_cpu() -> None:
    torch.manual_seed(0)
    model, x = Attention(), torch.randn(6, 4, 16)
    expected = model(x)
    devices = ["sim:0", "sim:1"]
    placed = baechi.torch.place(
        model, x, "2x1GiB", method="random", seed=1, bounds=False, devices=devices, tier=2
    )
    torch.testing.assert_close(model(x).cpu(), expected)
    assert (placed.tier, placed.tier_note) == (2, "")
    placed.restore()


@pytest.mark.parametrize(
    "chosen", [lambda t: t[:, :-1], lambda t: t[:, ::2], lambda t: t[:1].expand(5, -1)]
)
def test_examples_are_laid_out_as_the_graph_was_traced(chosen: Any, sim: Any) -> None:
    inputs = chosen(torch.randn(5, 8))
    model = nn.Sequential(nn.Linear(inputs.shape[1], 8), nn.Tanh(), nn.Linear(8, 8))
    expected = model(inputs)
    with sim.configured(devices=2, memory="1GiB"):
        placed = placed_at_random(model, inputs, ["sim:0", "sim:1"], tier=2)
        torch.testing.assert_close(model(inputs), expected)
        placed.restore()


def test_evaluation_has_a_graph_of_its_own() -> None:
    case = CASES["resnet"]
    plain = built(case)
    placed = scattered_graph("resnet")
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
    placed = scattered_graph("lstm")
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


def test_tier_2_can_be_insisted_on() -> None:
    case = CASES["turns"]
    placed = placed_at_random(built(case), case.inputs(2), 2, tier=2)
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
    placed, plain = scattered_graph("transformer"), built(case)

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

    placed = scattered_graph("inception")
    close(steps(built(case)), steps(placed.model))
    assert placed.model.head.weight.grad is None
    assert placed.tier == 2


def test_returned_objects_are_those_of_the_model() -> None:
    if "gpt2" not in ALL:
        pytest.skip("transformers is not installed")
    case = ALL["gpt2"]
    args, kwargs = call_arguments(case.inputs(2))
    plain, placed = built(case), scattered_graph("gpt2")
    expected, found = plain(*args, **kwargs), placed.model(*args, **kwargs)
    assert placed.tier == 2
    assert type(found) is type(expected)
    assert list(found) == list(expected)
    assert found.past_key_values.get_seq_length() == expected.past_key_values.get_seq_length()
    torch.testing.assert_close(
        found.past_key_values.layers[1].keys, expected.past_key_values.layers[1].keys
    )


@pytest.mark.usefixtures("sim")
def test_a_graph_is_made_while_there_are_gradients_on_a_device() -> None:
    model, x = nn.Linear(4, 4).to("sim:0"), torch.ones(2, 4, device="sim:0")
    model(x).sum().backward()
    gradients = [p.grad for p in model.parameters()]
    export(model, x)
    for parameter, gradient in zip(model.parameters(), gradients, strict=True):
        assert parameter.grad is gradient
        assert gradient is not None
        assert gradient.device.type == parameter.device.type == "sim"


def test_gradients_reach_the_inputs_and_steps_may_overlap() -> None:
    case = CASES["inception"]
    plain, placed = built(case), scattered_graph("inception")
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
    placed = scattered_graph("unet")
    with torch.no_grad():
        placed.model(case.inputs(2))
    assert placed.graphs == 2
    assert placed.verify(case.inputs(2))
    assert placed.graphs == 2


class Layers(nn.Module):
    """Many small layers, with plain functions between them."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(count))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Add up what they make."""
        for layer in self.layers:
            x = x + layer(x).tanh()
        return x


def traces(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list that every trace is noted in."""
    made: list[str] = []

    def noted(*args: Any, **options: Any) -> Any:
        made.append("a trace")
        return export(*args, **options)

    for module in (surroundings, graphs):
        monkeypatch.setattr(module, "export", noted)
    return made


@pytest.mark.usefixtures("as_by_default")
def test_a_graph_that_takes_long_to_trace_is_not_traced_unasked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = traces(monkeypatch)
    model, x = Layers(30), torch.randn(2, 4)
    for method in ("random", "single"):
        placed = placed_at_random(model, x, 2, method=method)
        said = r"would save about [\d.]+ ms of a step's [\d.]+ ms \(\d+%\) and take 1.2 s to trace"
        assert re.search(said, placed.tier_note)
        for batch in (x, torch.randn(3, 4)):
            loss_of(model, batch).backward()
            assert (placed.tier, placed.graphs) == (1, 0)
        assert placed.peaks == placed.tier_peaks[1]
        assert set(placed.tier_peaks) == {1}
        assert placed.verify(x)
        placed.restore()
    captured = baechi.torch.capture(model, x)
    device_of = {op.key: f"d{i % 2}" for i, op in enumerate(captured.ops)}
    where = {"d0": "cpu", "d1": "cpu"}
    placed = assign(model, captured, device_of, where)
    model(x)
    assert (placed.tier, "to trace" in placed.tier_note) == (1, True)
    assert made == []


@pytest.mark.usefixtures("as_by_default")
def test_a_long_trace_that_was_asked_for_is_announced(monkeypatch: pytest.MonkeyPatch) -> None:
    made = traces(monkeypatch)
    model, x = Layers(30), torch.randn(2, 4)
    placed = placed_at_random(model, x, 2, tier=2)
    model(x).sum().backward()
    assert (placed.tier, len(made)) == (2, 1)
    model.eval()
    with pytest.warns(UserWarning, match="Layers is called in a way .* number 2 takes about 1 s"):
        model(x)
    with torch.no_grad(), pytest.warns(UserWarning, match="tracing number 3"):
        model(x)
    assert (placed.tier, placed.graphs) == (2, 3)
    with pytest.warns(UserWarning, match="verified as a graph, too: tracing number 4"):
        assert placed.verify(x)
    placed.restore()
    # Given a graph, but not asked for others: these calls do not wait.
    known = placed._assigner.graphs.tier2.exported[:1]
    placed = placed_at_random(model.train(), x, 2, exported=known)
    model(x)
    assert placed.tier == 2
    model.eval()
    model(x)
    assert (placed.tier, "to trace" in placed.tier_note, len(made)) == (1, True, 3)


@pytest.mark.usefixtures("as_by_default")
def test_a_graph_that_pays_is_traced_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    made = traces(monkeypatch)
    model, x = Layers(16), torch.randn(2, 4)  # 48 calls, all intercepted; 0.8 s to trace
    for mode, method, ran in (("streams", "random", 2), ("streams", "single", 1)):
        placed = placed_at_random(copy.deepcopy(model), x, 2, method=method, mode=mode)
        placed.model(x).sum().backward()
        assert (placed.tier, len(made)) == (ran, 1)
        assert set(placed.tier_peaks) == set(range(1, ran + 1))
    placed = placed_at_random(model, x, 2, method="single", mode="streams+order")
    model(x)
    assert (placed.tier, len(made)) == (2, 2)  # the mode needs it


def test_a_graph_without_room_in_the_plan_does_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def too_large(memory: Any, plan: Any) -> Any:
        found = peaks_by_tier(memory, plan)
        return {**found, 2: {device: size + (1 << 40) for device, size in found[2].items()}}

    monkeypatch.setattr(planning, "peaks_by_tier", too_large)
    model, x = Layers(3), torch.randn(2, 4)
    placed = placed_at_random(model, x, 2)
    model(x)
    assert (placed.tier, placed.graphs, set(placed.tier_peaks)) == (1, 0, {1})
    assert re.fullmatch(
        r"its graph needs [\d,]+ bytes more than 'gpu:0' has in this plan", placed.tier_note
    )


@pytest.mark.usefixtures("sim")
def test_a_graph_that_is_made_behind_a_forward_leaves_its_gradients() -> None:
    torch.manual_seed(0)
    x, model = torch.randn(3, 4), nn.Sequential(nn.Linear(4, 4), nn.LSTM(4, 4))
    plain = copy.deepcopy(model)
    placed = placed_at_random(model, x, ["sim:0", "sim:1"], tier=2)
    found = []
    for one in (plain, model):
        loss = one(x)[0].square().sum()
        with torch.no_grad():
            one.eval()(x)  # which is a graph of its own
        found.append(torch.autograd.grad(loss, list(one.train().parameters())))
    for expected, grad in zip(*found, strict=True):
        torch.testing.assert_close(grad.cpu(), expected)
    assert placed.tier == 2
    placed.restore()
