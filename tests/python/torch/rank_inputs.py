# SPDX-License-Identifier: Apache-2.0
"""Cases of rank_calls.py: gradients of arguments, and models that are placed for inference."""

from __future__ import annotations

import copy
import importlib
from typing import Any

import torch
from rank_cases import at_random, odd_batch, odd_loss, odd_model, own_weights, said
from torch import nn

HOWS = ("backward", "inputs", "grad")


class Reading(nn.Module):
    """Reads its arguments at several places, and returns one of them, and a view of the other."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 8), nn.Linear(8, 8)
        self.last, self.beside = nn.Linear(8, 4), nn.Linear(6, 4)

    def forward(self, x: torch.Tensor, shift: torch.Tensor) -> dict[str, torch.Tensor]:
        view = (x * 2).reshape(len(x), -1)
        hidden = torch.relu(self.first(x))
        y = self.last(torch.relu(self.second(hidden)) + hidden) + self.beside(x)
        return {"y": y + shift, "view": view, "shift": shift}


def reading() -> tuple[nn.Module, tuple[torch.Tensor, torch.Tensor]]:
    torch.manual_seed(11)
    model = Reading().double()
    x, shift = torch.randn(8, 6), torch.randn(8, 4)
    return model, (x.double(), shift.double())


def gradients(model: nn.Module, how: str, given: Any) -> list[Any]:
    """Return the gradients of arguments that something else has computed, and of weights here."""
    x, shift = (tensor.clone().requires_grad_() for tensor in given)
    model.zero_grad()
    out = model((x * 3).sin(), shift)
    loss = out["y"].square().sum() + out["view"].sin().sum() + (out["shift"] ** 3).sum()
    if how == "grad":
        found = torch.autograd.grad(loss, [x, shift])
    else:
        loss.backward(inputs=[x, shift] if how == "inputs" else None)
        found = x.grad, shift.grad
    here = {n: p.grad for n, p in model.named_parameters() if type(p) is nn.Parameter}
    return [loss.detach(), *found, here]


def gradients_of_arguments(seed: int, simulated: bool, **options: Any) -> Any:
    """Return what each way to ask for them finds."""
    model, given = reading()
    if simulated:
        sim = importlib.import_module("baechi.torch.sim")
        sim.configure(devices=1, memory="1GiB", poison=True, longest_delay="100us", seed=3)
        options["devices"] = ["sim:0"] * torch.distributed.get_world_size()
    at_random(model, given, None, seed, loss=None, **options)
    return [gradients(model, how, given) for how in HOWS]


def asked_of_weights() -> dict[str, str]:
    """Return what is said where some weights are to have gradients."""
    model, given = reading()
    at_random(model, given, None, 1, loss=None)
    weights = list(model.parameters())
    x = given[0].clone().requires_grad_()
    loss = model(x, given[1])["y"].sum()
    found = {"weights": said(lambda: torch.autograd.grad(loss, weights, allow_unused=True))}
    found["some"] = said(lambda: loss.backward(inputs=[x, weights[0]]))
    loss.backward()  # neither of them was one
    found["then"] = f"{x.grad.norm().item():.9f}"
    return found


def outside() -> Any:
    """Train what comes before a placed model, whose own weights are frozen or not, with it."""
    model, (x, targets) = odd_model(), odd_batch()
    torch.manual_seed(1)
    before = nn.Linear(6, 6).double()
    return model, before, x, targets


def train_outside(model: nn.Module, before: nn.Module, x: Any, targets: Any) -> list[float]:
    optimizer = torch.optim.AdamW([*before.parameters(), *model.parameters()], 1e-2)
    losses = []
    for _ in range(3):
        loss = odd_loss(model(before(x)), targets)
        loss.backward()
        losses.append(loss.item())
        optimizer.step()
        optimizer.zero_grad()
    return losses


def trained_with_what_comes_before(**options: Any) -> Any:
    model, before, x, targets = outside()
    placed = at_random(model, x, None, 2, loss=None, **options)
    assert bool(placed.plan.recomputed) == ("recompute" in options)
    losses = train_outside(model, before, x, targets)
    return losses, own_weights(placed), before.state_dict()


def odd_inference() -> tuple[nn.Module, torch.Tensor]:
    """Return a model whose batch normalisation has seen something, for inference."""
    model, (x, _) = odd_model(), odd_batch()
    model(x * 2 + 1)
    return nn.Sequential(model.first, nn.Dropout(0.5), model.norm, model.second).eval(), x


def inference(given_plan: bool) -> Any:
    """Place a model in eval(), by a plan of its forward; also look at other batches, and train."""
    model, x = odd_inference()
    options: dict[str, Any] = {}
    if given_plan:
        plan = at_random(copy.deepcopy(model), x, None, 3, loss=None).plan
        options["plan"], options["cluster"] = plan, "auto"
    placed = at_random(model, x, None, 3, loss=None, **options)
    with torch.no_grad():
        found = [model(x), model(x[:3])]
    with torch.inference_mode():
        found.append(model(x[:1]))
    found.append(model(x).detach())
    step = said(lambda: placed.step(x))
    kinds = {op.partition("@")[2] for op in placed.plan.graph.names}
    return found, placed.plan.peaks, kinds, step, placed.transfers
