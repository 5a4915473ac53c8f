# SPDX-License-Identifier: Apache-2.0
"""What a forward draws is what it draws unplaced, and what its backward is of."""

from __future__ import annotations

import copy
import functools
from typing import Any

import baechi.torch
import pytest
import torch
from baechi.torch.where.drawn import state_of
from places import machine, placed
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

from models.bank import ENTRIES

FEATURES = 6
KINDS = {"lstm": nn.LSTM, "gru": nn.GRU, "rnn": nn.RNN}


class Recurrent(nn.Module):
    """Two recurrent layers with dropout between them; sequences may be packed."""

    def __init__(self, kind: str, *, both: bool, packed: bool, projected: bool) -> None:
        super().__init__()
        more = {"proj_size": 3} if projected else {}
        layer: Any = KINDS[kind]
        self.layers = layer(FEATURES, 5, 2, dropout=0.4, bidirectional=both, **more)
        self.packed = packed

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        given: Any = pack_padded_sequence(x, torch.tensor([2, 2, 1])) if self.packed else x
        out, state = self.layers(given)
        if self.packed:
            out, _ = pad_packed_sequence(out)
        states = state if isinstance(state, tuple) else (state,)
        return sum((t.square().mean() for t in states), out.square().mean())


def drawn(model: nn.Module, x: torch.Tensor) -> tuple[torch.Tensor, list[Any], torch.Tensor]:
    """Return the loss, the gradients, and the generator's state behind them."""
    torch.manual_seed(11)
    loss = model(x)
    loss.backward()
    gradients = [p.grad.cpu() for p in model.parameters() if p.grad is not None]
    return loss.detach().cpu(), gradients, state_of(torch.device("sim", 0))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("kind", "both", "packed", "projected"),
    [
        ("lstm", False, False, False),
        ("lstm", True, False, True),
        ("gru", False, False, False),
        ("rnn", True, False, False),
        ("lstm", False, True, True),
        ("gru", True, True, False),
    ],
)
def test_layers_that_recur_have_dropout_between_them(
    kind: str, both: bool, packed: bool, projected: bool
) -> None:
    def built() -> nn.Module:
        torch.manual_seed(7)
        model = Recurrent(kind, both=both, packed=packed, projected=projected)
        return model.double().train()

    generator = torch.Generator().manual_seed(1)
    with machine():
        x = torch.randn(2, 3, FEATURES, generator=generator, dtype=torch.double).to("sim:0")
        expected = drawn(built().to("sim:0"), x)
        model = built()
        there = baechi.torch.place(model, x, "1x1GiB", devices=["sim:0"], bounds=False)
        assert there.left_out == []
        torch.testing.assert_close(drawn(model, x), expected)
        assert "dropout" in str(there.program) or packed  # packed sequences run eagerly
        there.restore()


class Noisy(nn.Module):
    """Noise for which a call names the device, in a checkpoint."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(FEATURES, FEATURES)

    def part(self, x: torch.Tensor) -> torch.Tensor:
        noise = torch.rand(FEATURES, device=x.device, dtype=x.dtype)
        return (self.layer(x) * noise).sin()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return checkpoint(self.part, x, use_reentrant=False).square().mean()


@pytest.mark.filterwarnings("ignore")
def test_a_random_call_that_names_its_device_runs_again() -> None:
    with machine():
        x = torch.ones(3, FEATURES, dtype=torch.double, device="sim:0")
        model = Noisy().double()
        expected = drawn(copy.deepcopy(model).to("sim:0"), x)
        there = baechi.torch.place(model, x, "1x1GiB", devices=["sim:0"], bounds=False)
        torch.testing.assert_close(drawn(model, x), expected)
        assert "@again" in str(there.program)
        there.restore()


def selective(function: Any, x: torch.Tensor, **_: Any) -> Any:
    kept = functools.partial(create_selective_checkpoint_contexts, [torch.ops.aten.tanh.default])
    return checkpoint(function, x, use_reentrant=False, context_fn=kept)


def not_again(function: Any, x: torch.Tensor, **_: Any) -> Any:
    return function(x)


@pytest.mark.parametrize(("seed", "way"), [(1, checkpoint), (2, checkpoint), (3, selective)])
def test_a_checkpoint_that_runs_eagerly_draws_the_same_again(
    monkeypatch: pytest.MonkeyPatch, seed: int, way: Any
) -> None:
    def gradients(way: Any) -> list[torch.Tensor]:
        torch.manual_seed(7)
        entry = ENTRIES["dropout-checkpointed"]
        model = entry.build().double().train()
        monkeypatch.setattr("models.bank.chance.checkpoint", way)
        with machine(seed=seed) as devices, placed(model, devices, seed, compiled=False):
            batches = [entry.inputs(4, i).double().to("sim:0") for i in (1, 2)]
            torch.manual_seed(11)
            # Two calls before one backward, whose second runs begin with the last one's.
            sum(entry.loss(model(batch)) for batch in batches).backward()
            states = [state_of(device) for device in devices]
            return [*states, *(p.grad.cpu() for p in model.parameters() if p.grad is not None)]

    torch.testing.assert_close(gradients(way), gradients(not_again))


class Dropping(nn.Module):
    """Layers with dropout behind each, on devices of their own; the middle is in no graph."""

    def __init__(self, *, in_graphs: bool) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(FEATURES, FEATURES) for _ in range(3))
        self.drop, self.in_graphs = nn.Dropout(0.5), in_graphs

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = self.drop(layer(x)).sin()
            if not self.in_graphs:
                torch._dynamo.graph_break()
        return x


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("in_graphs", "reentrant", "retain"),
    [(True, False, True), (True, True, False), (False, False, False), (False, True, True)],
)
def test_a_checkpoint_around_the_model_draws_the_same_again(
    *, in_graphs: bool, reentrant: bool, retain: bool
) -> None:
    def outside(function: Any, x: torch.Tensor) -> Any:
        return checkpoint(function, x, use_reentrant=reentrant)

    def nested(function: Any, x: torch.Tensor) -> Any:
        return checkpoint(
            lambda x: outside(function, x * 2).exp() * outside(function, x),
            x,
            use_reentrant=reentrant,
        )

    def chained(function: Any, x: torch.Tensor) -> Any:
        return checkpoint(lambda x: function(function(x)).square(), x, use_reentrant=reentrant)

    def trained(*ways: Any) -> list[Any]:
        torch.manual_seed(3)
        model = Dropping(in_graphs=in_graphs).double().train()
        with (
            machine() as devices,
            placed(model, devices, 2),
        ):  # its graphs draw nothing on the batch's
            x = torch.randn(4, FEATURES, dtype=torch.double).to("sim:0").requires_grad_()
            torch.manual_seed(11)
            loss = torch.stack([way(model, x).mean() for way in ways]).sum()
            for again in (True, False)[not retain :]:
                loss.backward(retain_graph=again)
            states = [state_of(device) for device in devices]
            return [x.grad.cpu(), *states, *(p.grad.cpu() for p in model.parameters())]

    found = trained(outside, outside, nested, chained, selective)
    reference = [lambda f, x: f(x * 2).exp() * f(x), lambda f, x: f(f(x)).square()]
    plain = trained(not_again, not_again, *reference, not_again)
    torch.testing.assert_close(found, plain)


def test_calls_of_one_module_that_nothing_tells_apart_do_not_run_again() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.block = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.Linear(4, 4))
            self.last = nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for _ in range(2):
                x = checkpoint(lambda x: self.block(x * 2), x, use_reentrant=False)
            return self.last(x)

    torch.manual_seed(1)
    model = Twice()
    with machine() as devices, placed(model, devices, 3, compiled=False):
        loss = model(torch.randn(4, 4, device="sim:0")).sum()
        with pytest.raises(baechi.InputError, match="nothing tells which call it is"):
            loss.backward()
