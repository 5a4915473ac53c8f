# SPDX-License-Identifier: Apache-2.0
"""Roofline: what calls cost on known devices, estimated from their FLOPs and bytes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import fx
from torch.utils import flop_counter

from baechi._core import Cluster, roofline_time
from baechi.presets import presets_of
from baechi.torch.capture.keys import name_of
from baechi.torch.capture.loss import tensors_in
from baechi.torch.costs.costs import FEW, MANY, Costs, given, signature_of, traffic_of

DEFAULT_PRESET = "rtx2080"  # for devices that only say "gpu"
_PRECISIONS = {torch.float16: "fp16", torch.bfloat16: "bf16"}


def flops_of(node: fx.Node) -> int:
    """Return the floating point operations of a call; one an element where no formula is known."""
    args, kwargs = given(node)
    out = node.meta.get("val")
    formula = _formula(node)
    if formula is not None:
        return int(formula(*args, **kwargs, out_val=out))
    return sum(int(tensor.numel()) for tensor in tensors_in(out))


def _formula(node: fx.Node) -> Callable[..., Any] | None:
    if not isinstance(node.target, torch._ops.OpOverload):
        return None
    known: Mapping[Any, Any] = flop_counter.flop_registry
    aten = torch.ops.aten
    name = name_of(node)
    if "scaled_dot_product" in name:  # each kind of device has an operator of its own
        back = "_backward" in name
        alike = aten._scaled_dot_product_flash_attention_backward if back else None
        return known[alike or aten._scaled_dot_product_flash_attention]
    return known.get(node.target.overloadpacket)


def precision_of(node: fx.Node) -> str:
    """Return in which precision a call computes, as presets name it."""
    types = [t.dtype for t in tensors_in(node.meta.get("val")) if t.is_floating_point()]
    return _PRECISIONS.get(Counter(types).most_common(1)[0][0], "fp32") if types else "fp32"


def estimated(calls: Iterable[fx.Node], kinds: Mapping[str, str] | Cluster) -> Costs:
    """Estimate calls; no device is needed.

    Args:
        calls: Those of a step, `step.keys`.
        kinds: The preset for each kind of device, or a cluster whose kinds name presets.

    """
    presets = presets_of(kinds, DEFAULT_PRESET) if isinstance(kinds, Cluster) else dict(kinds)
    costs = Costs("estimated for " + ", ".join(sorted(presets.values())))
    for node in calls:
        signature = signature_of(node)
        if signature not in costs.times:
            work, precision = (flops_of(node), traffic_of(node)), precision_of(node)
            costs.times[signature] = {
                kind: roofline_time(preset, *work, precision=precision)
                for kind, preset in presets.items()
            }
    for kind, preset in presets.items():
        costs.set_of_bytes(kind, *moving_of(preset))
    return costs


def moving_of(preset: str) -> tuple[int, int]:
    """Return what moving FEW and MANY bytes takes."""
    return roofline_time(preset, 0, FEW), roofline_time(preset, 0, MANY)
