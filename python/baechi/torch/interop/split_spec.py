# SPDX-License-Identifier: Apache-2.0
"""Plans as the stages of torch.distributed.pipelining, torchtitan and NeMo AutoModel."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from baechi import reports
from baechi._core import InputError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from torch import nn

    from baechi._core import Plan


def split_spec(plan: Plan) -> dict[str, Any]:
    """Return what ``torch.distributed.pipelining.pipeline(..., split_spec=...)`` takes.

    Args:
        plan: A plan that gives whole layers to devices, in their order.

    Returns:
        The first layer of every stage but the first, as a module's name, and where to split there:
        ``SplitPoint.BEGINNING``. Stage i is the i-th device that has layers.

    Raises:
        InputError: The plan is not layer-wise; it names the operators.

    """
    from torch.distributed.pipelining import SplitPoint

    layers = json.loads(reports.export_plan(plan, "torch-pipelining", "split-spec"))
    return {layer: SplitPoint[where.upper()] for layer, where in layers.items()}


def module_fqns_per_model_part(plan: Plan, model: nn.Module) -> list[list[str]]:
    """Return what torchtitan and NeMo AutoModel take under that name: the modules of every stage.

    Args:
        plan: A plan that gives whole layers to devices, in their order.
        model: The model that was planned; it may be on the meta device.

    Returns:
        A list for each device that has something, in their order. Modules beside the layers that
        have no parameters, such as rotary embeddings, are in all of them.

    Raises:
        InputError: The plan is no chain of stages (weights that are tied cannot be in two), or the
            model is another one.

    """
    parts: list[list[str]] = json.loads(
        reports.export_plan(plan, "torch-pipelining", "module-fqns")
    )
    part_of = {name: i for i, part in enumerate(parts) for name in part}
    known = dict(model.named_modules())
    if wrong := [name for name in part_of if name not in known]:
        raise InputError(f"the plan has a module {wrong[0]!r}, and the model has none of that name")
    part_of_weight = {
        id(weight): i for name, i in part_of.items() for weight in known[name].parameters()
    }
    for name, module in _outermost(model, part_of):
        weights = [id(weight) for weight in module.parameters()]
        if unknown := [weight for weight in weights if weight not in part_of_weight]:
            raise InputError(
                f"module {name!r} has {len(unknown)} parameters that no operator of the plan "
                "holds: the planned step did not use them, or it was that of another model"
            )
        # One that shares its weights with another is where that is, one without any everywhere.
        homes = {part_of_weight[weight] for weight in weights} or range(len(parts))
        for home in homes:
            if name not in parts[home]:
                parts[home].append(name)
    return parts


def _outermost(
    model: nn.Module, listed: Mapping[str, int], prefix: str = ""
) -> Iterator[tuple[str, nn.Module]]:
    """Names and modules that together are the whole model; those that are listed are among them."""
    for child, module in model.named_children():
        name = prefix + child
        if name not in listed and any(each.startswith(name + ".") for each in listed):
            yield from _outermost(module, listed, name + ".")
        else:
            yield name, module
