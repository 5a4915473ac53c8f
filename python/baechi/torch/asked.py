# SPDX-License-Identifier: Apache-2.0
"""What `plan` and `place` are asked for: checked, with its devices and what the caller holds."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from baechi._core import Cluster, InputError, Plan
from baechi.pipeline import cluster_of, plan_given
from baechi.progress import warn
from baechi.torch.base import _private_compile
from baechi.torch.base.devices import chosen_devices, detected_cluster
from baechi.torch.base.nested import tensors_in
from baechi.torch.base.request import check_loss, check_model, check_search, devices_too_small
from baechi.torch.cost.optimizers import optimizer_name
from baechi.torch.cost.profiler import Costs
from baechi.torch.memory.eager import StepContext, held_bytes
from baechi.torch.memory.fit import GRADIENTS
from baechi.torch.record.capture import call_arguments
from baechi.torch.run.graphs import MODES, TIERS
from baechi.torch.run.ways import AUTO
from baechi.torch.trace.exported import Exported
from baechi.torch.trace.schedule import ORDER
from baechi.torch.weights.making import check_can_be_made

if TYPE_CHECKING:
    from baechi.pipeline import ClusterLike

LEVELS = ("module", "operator")
RECOMPUTE = ("none", "auto", "all")
INTERNAL = ("search", "to_run", "exported", "in_steps")  # no arguments of `place`


def check_how(mode: str, tier: str | int, modes: Sequence[str] = MODES) -> None:
    """Raise InputError unless there is such a way to run a model."""
    if tier not in TIERS:
        raise InputError(f"tier is one of {', '.join(map(str, TIERS))}, not {tier!r}")
    if mode not in modes:
        raise InputError(f"mode is one of {', '.join(modes)}, not {mode!r}")
    if tier == 1 and mode == ORDER:
        raise InputError("tier 1 runs operators in the order of the program: mode needs tier 2")


@dataclass
class Request:
    """What `place` and `plan` are asked for; checked before anything is recorded."""

    model: nn.Module
    example_inputs: Any
    cluster: ClusterLike = "auto"
    plan: Plan | None = None  # made before: nothing is searched for
    loss: Callable[[Any], torch.Tensor] | None = None
    devices: Sequence[str | torch.device] | None = None
    costs: str | Costs = "estimate"
    optimizer: Any = "adam"
    units: Any = "leaf"
    mode: str = AUTO
    tier: str | int = "auto"
    level: str = "module"
    gradients: str = "auto"
    weights: Any = None  # where they come from, of a model on the meta device
    recompute: str = "auto"
    search: Mapping[str, Any] = field(default_factory=dict)  # options of `place_graph`
    to_run: bool = True  # else the devices need not be there, nor the model's values
    exported: Sequence[Exported] = ()  # graphs that are there already
    in_steps: bool = False  # of micro-batches

    def __post_init__(self) -> None:
        check_model(self.model)
        self.model = _private_compile.uncompiled(self.model)
        if self.to_run:
            check_can_be_made(self.model, self.weights, self.costs)
        known = [f.name for f in fields(self) if f.name not in INTERNAL]
        check_search(self.search, [*known, "verbose"], self.costs)
        if "order" in self.search:
            raise InputError(
                f"order follows from the mode: {ORDER!r} runs operators in the order of the plan, "
                "the other modes in that of the program"
            )
        check_recompute(self)
        check_loss(self.loss, takes_targets=self.in_steps)
        self.optimizer = optimizer_name(self.optimizer)
        if self.gradients not in GRADIENTS:
            raise InputError(f"gradients is one of {', '.join(GRADIENTS)}, not {self.gradients!r}")
        if self.level not in LEVELS:
            raise InputError(f"level is one of {', '.join(LEVELS)}, not {self.level!r}")
        check_how(self.mode, self.tier, (AUTO, *MODES))
        if self.plan is not None:
            plan_given(self.plan)
            if self.cluster != "auto" and cluster_of(self.cluster) != self.plan.cluster:
                raise InputError(
                    "cluster: the plan was made for other devices, which it names itself: give the "
                    "cluster or the plan"
                )


def check_recompute(asked: Request) -> None:
    """Raise InputError where operators are to run again in a way that does not run them so."""
    if asked.recompute not in RECOMPUTE:
        raise InputError(f"recompute is one of {', '.join(RECOMPUTE)}, not {asked.recompute!r}")
    if asked.in_steps or asked.plan is None or not plan_given(asked.plan).recomputed:
        return  # a step runs them again as the plan says
    if asked.plan.order == "program":
        return
    if asked.plan.order != "planned" or asked.tier == 1 or asked.mode not in (AUTO, ORDER):
        raise InputError(
            f"the plan has operators run again in an order of its own, which mode={ORDER!r} runs; "
            "the other modes keep to that of the program, for which baechi.torch.plan makes plans "
            "(order='program' for baechi.place_graph)"
        )


def cluster_on(asked: Request) -> tuple[Cluster, dict[str, torch.device]]:
    """Return a cluster and the physical device of each of its devices."""
    devices = asked.devices
    if asked.plan is not None:
        found = asked.plan.cluster
    elif asked.cluster == "auto":
        given = tensors_in(call_arguments(asked.example_inputs))
        found, physical = detected_cluster(asked.model, given)
        devices = devices or physical
    else:
        found = cluster_of(asked.cluster)
    names = [device.name for device in found.devices]
    if asked.to_run or devices:
        chosen = chosen_devices(devices, found)
    else:
        chosen = [torch.device("cpu")] * len(names)
    physical_of = dict(zip(names, chosen, strict=True))
    capacities = {device.name: device.capacity for device in found.devices}
    small = devices_too_small(capacities, physical_of)
    for device, (planned, there) in list(small.items())[:1]:
        more = f" (and too much for {len(small) - 1} more)" if len(small) > 1 else ""
        warn(
            f"the cluster has {planned:,} bytes for {device}, which has {there:,}{more}: a plan "
            "may run out of memory; name what there is, or cluster='auto'"
        )
    return found, physical_of


def context_of(
    asked: Request, cluster: Cluster, physical_of: Mapping[str, torch.device]
) -> StepContext:
    """Return what the caller holds; arguments on several devices count where the first one is.

    Where the devices are not there, those of kind "cpu" are the CPU.
    """
    given = list(tensors_in(call_arguments(asked.example_inputs)))
    called = given[0].device if given else None
    if asked.to_run or asked.devices or asked.cluster == "auto":
        host = tuple(n for n, d in physical_of.items() if d.type == "cpu")
        home = next((name for name, device in physical_of.items() if device == called), None)
    else:
        host = tuple(d.name for d in cluster.devices if d.kind == "cpu")
        home = next(iter(host), None) if called is not None and called.type == "cpu" else None
    return StepContext(asked.optimizer, home, held_bytes(given), host)
