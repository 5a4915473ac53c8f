# SPDX-License-Identifier: Apache-2.0
"""What training scripts do with a model, after it was placed."""

from __future__ import annotations

import copy
import threading
import warnings
from typing import Any

import pytest

pytest.importorskip("torch")

import baechi.torch
import torch
from branching_net import DEVICES, X, both, net, placed, same_gradients, same_steps
from random_placement import placed_at_random
from torch import nn

import baechi

sim: Any = pytest.importorskip("baechi.torch.sim")

pytestmark = pytest.mark.usefixtures("sim", "restored")

TIERS = pytest.mark.parametrize("tier", [1, 2])


# Moving and retyping


@pytest.mark.repeats
@TIERS
@pytest.mark.parametrize("how", ["to", "cpu", "to_empty", "to, typed", "to, a part"])
def test_a_script_that_sends_the_model_to_a_device_is_told_and_goes_on(tier: int, how: str) -> None:
    plain, model, place = both(tier)
    where = [p.device for p in model.parameters()]
    if how == "to, a part":
        model.left.to("sim:3")
        with pytest.raises(baechi.InputError, match=r"'left.weight' is on sim:3, and the plan"):
            model(X)
        place.restore()
        return
    moves = {"cpu": model.cpu, "to_empty": lambda: model.to_empty(device="sim:3")}
    with pytest.warns(UserWarning, match="its weights stay on the devices of the plan"):
        moves[how]() if how in moves else model.to("sim:3")
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # it is said once
        if how == "to, typed":
            model.to("cpu", torch.float64)
            plain.double()
            torch.testing.assert_close(model(X.double()), plain(X.double()))
        else:
            same_steps(plain, model)
    assert [p.device for p in model.parameters()] == where
    place.restore()
    assert {p.device.type for p in model.parameters()} == {"cpu"}
    model.to("sim:3")
    assert {str(p.device) for p in model.parameters()} == {"sim:3"}


class Typed(nn.Module):
    """Has a buffer, and a conversion to the type of its weights."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(8, 4), nn.Linear(4, 4)
        self.register_buffer("scale", torch.ones(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Convert what is computed to the weights' type."""
        y = torch.arange(4, device=x.device).float() * self.scale.float()
        return self.head(self.embedding(x) * y.to(self.head.weight.dtype)) * self.scale


@TIERS
@pytest.mark.parametrize("devices", [DEVICES, ["sim:0"] * 3])
def test_other_precisions_after_placement(tier: int, devices: list[str]) -> None:
    torch.manual_seed(5)
    plain, x = Typed(), torch.tensor([1, 2, 3])
    model = copy.deepcopy(plain)
    place = placed_at_random(model, x, devices, seed=1, tier=tier)
    torch.testing.assert_close(model(x), plain(x))
    for change in ("double", "bfloat16", "float"):
        getattr(plain, change)()
        getattr(model, change)()
        found = model(x)
        assert found.dtype == plain(x).dtype
        torch.testing.assert_close(found, plain(x), rtol=1e-2, atol=1e-2)
        assert place.tier == tier
    place.restore()
    assert {t.device.type for t in (*model.parameters(), *model.buffers())} == {"cpu"}
    torch.testing.assert_close(model(x), plain(x), rtol=1e-2, atol=1e-2)


def test_weights_that_are_not_the_models_own_are_named() -> None:
    plain, model, place = both(1)
    weights = {name: tensor * 2 for name, tensor in plain.state_dict().items()}
    with pytest.raises(baechi.InputError, match=r"the weight '.*' is on cpu, and the plan has it"):
        torch.func.functional_call(model, weights, (X,))
    homes = {name: p.device for name, p in model.named_parameters()}
    there = {name: tensor.to(homes[name]) for name, tensor in weights.items()}
    expected = torch.func.functional_call(plain, weights, (X,))
    torch.testing.assert_close(torch.func.functional_call(model, there, (X,)), expected)
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        model(torch.zeros(2, 3))  # an error of the user's own is left as it is
    place.restore()


# Modules that are changed


@pytest.mark.repeats
@pytest.mark.parametrize("tier", [1, "auto"])
@pytest.mark.parametrize("name", ["weight_norm", "spectral_norm", "orthogonal"])
def test_parametrizations_before_and_after_placement(name: str, tier: int | str) -> None:
    parametrize = getattr(nn.utils.parametrizations, name)
    for after in (False, True):
        plain, model = net(), net()
        for each in (plain, model):
            if not after:
                torch.manual_seed(3)
                parametrize(each.left)
        place = placed(model, tier)
        for each in (plain, model):
            each(X)
            if after:
                torch.manual_seed(3)
                parametrize(each.left)
        if name == "weight_norm" or not after:  # the others draw on the device
            same_steps(plain, model)
        place.restore()
        assert {t.device.type for t in (*model.parameters(), *model.buffers())} == {"cpu"}
        model(X)


class Adapted(nn.Module):
    """A layer with an adapter of low rank beside it."""

    def __init__(self, base: nn.Module) -> None:
        super().__init__()
        torch.manual_seed(9)
        self.base = base
        self.down, self.up = nn.Linear(16, 2, bias=False), nn.Linear(2, 16, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Add the adapter."""
        return self.base(x) + self.up(self.down(x))


@pytest.mark.repeats
@pytest.mark.filterwarnings("ignore:.*not in the recorded step")
@pytest.mark.parametrize("device", ["cpu", "sim:1"])
@pytest.mark.parametrize("tier", [1, "auto"])
def test_adapters_that_are_put_in_after_placement(tier: int | str, device: str) -> None:
    plain, model, place = both(tier)
    model(X)
    for each in (plain, model):
        each.left.requires_grad_(False)
        each.left = Adapted(each.left)
    model.left.down.to(device)
    model.left.up.to(device)
    same_steps(plain, model)
    assert place.tier == 1
    place.restore()
    assert {p.device.type for p in model.parameters()} == {"cpu"}
    same_steps(plain, model)


@TIERS
def test_a_parameter_that_is_taken_away_is_noticed(tier: int) -> None:
    plain, model, place = both(tier)
    model(X)
    for each in (plain, model):
        del each.left.bias
        each.left.register_parameter("bias", None)
    torch.testing.assert_close(model(X), plain(X))
    place.restore()


# Steps of other shapes


@TIERS
def test_gradients_are_accumulated_and_evaluation_comes_in_between(tier: int) -> None:
    plain, model, _ = both(tier)
    for each in (plain, model):
        outs = [each(X * n) for n in range(3)]
        for n in range(3):
            (each(X * n).square().mean() / 3).backward()
            each.eval()
            for context in (torch.no_grad, torch.inference_mode):
                with context():
                    torch.testing.assert_close(each(X), plain(X))
            each.train()
        sum(out.square().mean() for out in outs).backward()
    same_gradients(plain, model)


@pytest.mark.filterwarnings("ignore:.*not in the recorded step")  # what a hook computes
@TIERS
def test_hooks_of_the_user_after_placement(tier: int) -> None:
    plain, model, _ = both(tier)
    model(X)
    called: list[list[str]] = [[], []]
    for each, seen in zip((plain, model), called, strict=True):
        each.left.register_forward_pre_hook(lambda _, inputs: (inputs[0] * 2,))
        each.left.register_forward_hook(lambda _m, _i, out: out + 1)
        each.right.register_full_backward_hook(lambda _, into, __: (into[0] * 2,))
        each.head.weight.register_hook(lambda gradient: gradient * 3)
        each.register_forward_hook(lambda *_, seen=seen: seen.append("forward"))
        each.stem.weight.register_post_accumulate_grad_hook(
            lambda _, seen=seen: seen.append("accumulated")
        )
    same_steps(plain, model)
    assert called[0] == called[1] == ["forward", "accumulated"] * 2


@TIERS
def test_averaged_weights_and_clipped_gradients(tier: int) -> None:
    plain, model = net(), net()
    averages = [torch.optim.swa_utils.AveragedModel(each) for each in (plain, model)]
    placed(model, tier)
    for each, average in zip((plain, model), averages, strict=True):
        optimizer = torch.optim.SGD(each.parameters(), 0.1)
        for _ in range(3):
            optimizer.zero_grad()
            each(X).square().mean().backward()
            assert nn.utils.clip_grad_norm_(each.parameters(), 0.1) > 0.1
            optimizer.step()
            average.update_parameters(each)
    torch.testing.assert_close(averages[1](X), averages[0](X))


def test_a_part_that_is_called_alone_returns_to_where_its_input_is() -> None:
    plain, model, place = both(1)
    for part in ("stem", "left", "right"):
        for home in ("cpu", "sim:2"):
            x = X.to(home)
            found = getattr(model, part)(x)
            assert found.device == x.device
            torch.testing.assert_close((found + x).cpu(), getattr(plain, part)(X) + X)
    place.restore()


@pytest.mark.parametrize("tier", [1, "auto"])
def test_threads_take_turns_and_count_their_own_calls(tier: int | str) -> None:
    plain, model, place = both(tier)
    plain.eval(), model.eval()  # no graph of that mode is there yet
    batches = [X * n for n in range(1, 13)]
    found: dict[int, torch.Tensor] = {}
    together = threading.Barrier(3)

    def run(first: int) -> None:
        together.wait(60)
        with torch.no_grad():
            for n in range(first, 12, 3):
                part = model.stem(batches[n])
                found[n] = model(batches[n]) + part.sum()

    threads = [threading.Thread(target=run, args=(first,)) for first in range(3)]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    for n, batch in enumerate(batches):
        expected = plain(batch) + plain.stem(batch).sum()
        torch.testing.assert_close(found[n].cpu(), expected, rtol=1e-4, atol=1e-4)
    assert place.unplanned == set()
    assert place.graphs == (0 if tier == 1 else 2)
    place.restore()


class Filled(nn.Module):
    """Fills a tensor of its own piece by piece, as a cache of fixed size is."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(16, 16) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Read the whole tensor after each piece."""
        cache = torch.zeros(4, *x.shape, device=x.device)
        for number, layer in enumerate(self.layers):
            x = layer(x)
            cache.index_copy_(0, torch.tensor([number], device=x.device), x[None])
            x = x + cache.sum(0)
        return x


def test_a_tensor_that_the_model_makes_itself_is_filled_in_order() -> None:
    torch.manual_seed(5)
    plain = Filled()
    model = copy.deepcopy(plain)
    with sim.configured(devices=1, poison=True, longest_delay="1ms", seed=2), torch.no_grad():
        placed(model, 1, ["sim:0"] * 3)
        for n in range(5):
            x = (X * n).to("sim:0")
            torch.testing.assert_close(model(x).cpu(), plain(X * n), rtol=1e-4, atol=1e-5)
