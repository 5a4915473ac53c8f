# SPDX-License-Identifier: Apache-2.0
"""Whether a placed model trains as on one device, on simulated devices that work on their own."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from typing import Any

import baechi.torch.sim as sim
import torch
from baechi.torch.base.nested import map_tensors
from baechi.torch.record.capture import call_arguments
from random_placement import placed_at_random
from training_steps import loss_like

STEPS = 3
EXCLUSIVE = ["sim:0", "sim:1", "sim:2"]
SHARED = ["sim:0", "sim:0", "sim:1"]


def trained(model: Any, inputs: Any) -> tuple[list[float], dict[str, torch.Tensor]]:
    """Return the losses of some steps, and the weights and buffers behind them."""
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    args, kwargs = call_arguments(inputs)
    losses = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = loss_like(model(*args, **kwargs))
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    torch.accelerator.synchronize()
    return losses, {name: t.detach().cpu().clone() for name, t in model.state_dict().items()}


def trains_the_same(
    model: Any,
    inputs: Any,
    *,
    tiers: Iterable[Any] = (1, "auto"),
    seeds: Iterable[int] = (1, 2, 3),
    homes: Sequence[str] = ("cpu", "sim:1"),
    devices: Sequence[list[str]] = (EXCLUSIVE, EXCLUSIVE, SHARED),
    ran: int | None = None,
    **options: Any,
) -> None:
    """Check it at placements by chance and the planned one, with inputs from each home.

    Args:
        model: In double precision; it is copied.
        inputs: On the CPU, as example inputs are given.
        tiers: That are asked for.
        seeds: Of the placements; one more is planned.
        homes: Where the inputs of the steps are, one for each placement in turn.
        devices: Where the cluster's are, also in turn.
        ran: The tier that "auto" must have run.
        options: More for `place`.

    """
    expected = trained(copy.deepcopy(model), inputs)
    cases = [
        (tier, seed, devices[number % len(devices)])
        for tier in tiers
        for number, seed in enumerate([None, *seeds])
    ]
    # The first placement traces a graph, or finds out that there is none; the others know.
    known: list[Any] = []
    without_graph = False
    for number, (tier, seed, where_they_are) in enumerate(cases):
        how = {"method": "m-etf"} if seed is None else {"seed": seed}
        placed = placed_at_random(
            copy.deepcopy(model),
            inputs,
            where_they_are,
            tier=1 if without_graph else tier,
            exported=known,
            **how,
            **options,
        )
        home = homes[number % len(homes)]
        where = f"tier {tier}, seed {seed}, {where_they_are}, inputs on {home}"
        delays = {"longest_delay": "300us", "seed": number}
        state = copy.deepcopy(model.state_dict())
        with sim.configured(devices=4, poison=True, memory="1GiB", **delays):
            placed.model.load_state_dict(state)
            found = trained(placed.model, map_tensors(lambda t: t.to(home), inputs))  # noqa: B023
        if ran is not None and tier == "auto":
            assert placed.tier == ran, f"{where}: {placed.tier_note}"
        check_same(expected, found, where)
        if tier == "auto" and not known:
            traced = placed._assigner.graphs.tier2.exported if placed.tier == 2 else []
            known = [graph for graph in traced if graph.variant == 0]
            without_graph = not traced
        placed.restore()


def check_same(expected: Any, found: Any, where: str, rounding: float = 1e-8) -> None:
    """Compare losses, and weights and buffers by name."""
    torch.testing.assert_close(found[0], expected[0], rtol=1e-9, atol=1e-9, msg=f"losses, {where}")
    assert found[1].keys() == expected[1].keys()
    for name, tensor in expected[1].items():
        torch.testing.assert_close(
            found[1][name],
            tensor,
            rtol=rounding,
            atol=rounding,
            msg=lambda m: f"{name}, {where}: {m}",  # noqa: B023
        )
