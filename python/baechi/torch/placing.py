# SPDX-License-Identifier: Apache-2.0
"""Place: one call from a model and a cluster to a plan, or to a placed model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from baechi._core import Plan
from baechi.brief_errors import briefly
from baechi.progress import told
from baechi.torch.placed import Placed
from baechi.torch.planned_step import planned, uncompiled
from baechi.torch.ranks.placing import place_over_ranks, processes_for
from baechi.torch.request import Request
from baechi.torch.search import Search, search_of
from baechi.torch.weights.sources import make_weights

if TYPE_CHECKING:
    from baechi.pipeline import ClusterLike


@briefly
@told
def plan(
    model: nn.Module,
    example_inputs: Any,
    cluster: ClusterLike = "auto",
    *,
    loss: Callable[..., torch.Tensor] | None = None,
    targets: Any = None,
    micro_batches: int | str | None = None,
    devices: Sequence[str | torch.device] | None = None,
    costs: Any = "estimate",
    optimizer: str | type | torch.optim.Optimizer | None = "adam",
    search: Search | None = None,
    **keywords: Any,
) -> Plan:
    """Plan where each operator of a model would run; arguments are those of `place`.

    The model stays as it is. It may be on the meta device, and the devices need not be there.
    """
    step = loss, targets, micro_batches, devices, costs, optimizer
    how = search_of(search, keywords)
    asked = Request(uncompiled(model), example_inputs, cluster, None, *step, search=how)
    return planned(asked, to_run=devices is not None).plan


@briefly
@told
def place(
    model: nn.Module,
    example_inputs: Any,
    cluster: ClusterLike = "auto",
    *,
    plan: Plan | None = None,
    loss: Callable[..., torch.Tensor] | None = None,
    targets: Any = None,
    micro_batches: int | str | None = None,
    devices: Sequence[str | torch.device] | None = None,
    costs: Any = "estimate",
    optimizer: str | type | torch.optim.Optimizer | None = "adam",
    weights: Any = None,
    ranks: bool | str = "auto",
    search: Search | None = None,
    **keywords: Any,
) -> Placed:
    """Plan where each operator of a model runs, and make the model run so.

    Args:
        model: Any module; it keeps its parameters' identity, and its own code. Of one that
            `torch.compile` returned the module inside, compiled in regions (see `Search`).
        example_inputs: A mapping of keyword arguments, a tuple of arguments, or the one argument.
        cluster: "auto" for the accelerators of this machine, or what `baechi.place_graph` takes.
        plan: A plan of this step, made before: its cluster is taken and nothing is searched for.
        loss: From the model's output, and `targets` where they are given, to a scalar; by default
            the output's own `loss`, else the sum of the means of its tensors.
        targets: What the loss compares with, for an example.
        micro_batches: In how many parts `placed.step(batch)` runs a mini-batch such as the
            example inputs, or "auto". The plan is of such a step; without, of a call of the model
            and of its backward.
        devices: The physical device of each device of the cluster. By default the CPU for those
            of kind "cpu", and an accelerator for each other one.
        costs: "estimate" by a roofline, "measure" on a device of each kind, or costs loaded from a
            file.
        optimizer: Whose state needs room beside the weights: a name, a class or an instance.
        weights: Where the values come from of a model on the meta device: a state_dict, a
            safetensors file or folder, or a checkpoint's folder.
        ranks: Whether to run over the processes of `torch.distributed`, one device in each: "auto"
            where there are several; False places the whole model in each process alone.
        search: How to look for a plan; `keywords` are more of it, such as budget="5s".
        keywords: See `Search`, and `baechi.place_graph`.

    Raises:
        DoesNotFit: No plan fits the cluster.
        InputError: The request cannot be right; the model is as before.

    """
    how = search_of(search, keywords)
    if how.compile is None:
        how = replace(how, compile=uncompiled(model) is not model)
    step = loss, targets, micro_batches, devices, costs, optimizer
    asked = Request(uncompiled(model), example_inputs, cluster, plan, *step, weights, how)
    processes = processes_for(asked, ranks)
    if processes is not None:
        return place_over_ranks(asked, processes)
    found = planned(asked)
    index = dict(zip(found.names, found.devices, strict=True))
    make_weights(asked.model, asked.weights, {n: index[d] for n, d in found.homes.items()})
    return Placed(found, asked)
