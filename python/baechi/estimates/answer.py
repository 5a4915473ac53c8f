# SPDX-License-Identifier: Apache-2.0
"""Whether a model fits a few devices, how fast a step is, and what another card would bring."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from baechi._core import Cluster, InputError, Plan
from baechi.estimates.architectures import Sizes, Step, known, step_of
from baechi.estimates.clusters import HOST, Setup
from baechi.estimates.config_file import read_config
from baechi.estimates.modules import OPTIMIZERS, QUANTIZED, Costing
from baechi.estimates.traced import is_factory, step_of_class, step_of_factory
from baechi.near_name import did_you_mean
from baechi.pipeline import DoesNotFit, place_graph
from baechi.tables import in_bytes, in_time

if TYPE_CHECKING:
    from baechi.pipeline import ClusterLike

_NEAR = 0.05  # above the best possible
_PRECISIONS = ("bf16", "fp16", "tf32", "fp32")


@dataclass(frozen=True)
class Estimate:
    """What a step takes on a cluster; ``str()`` says it in words. Times are nanoseconds."""

    model: str
    step: str  # what one takes in, in words
    parameters: int
    trained: int
    fits: bool
    step_ns: int | None = None
    per_second: float | None = None
    unit: str = "samples"
    above_bound: float | None = None
    peaks: dict[str, int] = field(default_factory=dict)
    capacities: dict[str, int] = field(default_factory=dict)
    busy: dict[str, float] = field(default_factory=dict)
    again: int = 0  # operators that run a second time
    away: int = 0  # bytes of variables that the host keeps
    variables: int = 0
    put: int = 0
    fetched: int = 0
    blocks_away: float | None = None  # how many blocks' weights that is
    blocks: int = 0
    others: dict[str, int | None] = field(default_factory=dict)  # steps on other clusters
    reason: str = ""
    assumed: str = ""
    plan: Plan | None = field(default=None, repr=False)

    def document(self) -> dict[str, Any]:
        """Everything but the plan, as JSON takes it."""
        kept = {name: value for name, value in vars(self).items() if name != "plan"}
        return asdict(Estimate(**kept)) | {"plan": None}

    def __str__(self) -> str:
        return "\n".join([*self._head(), *self._devices(), *self._others(), self.assumed])

    def _repr_html_(self) -> str:
        import html

        return f"<pre>{html.escape(str(self))}</pre>"

    def _head(self) -> list[str]:
        part = (
            ""
            if not self.trained
            else (
                ", all trained"
                if self.trained >= self.parameters
                else f", {in_count(self.trained)} trained"
            )
        )
        head = f"{self.model}: {in_count(self.parameters)} parameters{part}; {self.step}"
        if self.step_ns is None:
            return [head, f"does not fit: {self.reason}"]
        above = self.above_bound
        bound = (
            "" if above is None else f", at most {math.ceil(above * 100)}% above the best possible"
        )
        speed = (
            f"{self.per_second:,.3g}"
            if (self.per_second or 0) < 100
            else (f"{self.per_second:,.0f}")
        )
        return [head, f"fits: {in_time(self.step_ns)} a step, {speed} {self.unit} a second{bound}"]

    def _devices(self) -> list[str]:
        if self.step_ns is None:
            return []
        lines = [
            f"{name}: {in_bytes(peak)} of {in_bytes(self.capacities[name])} at the peak, "
            f"busy {self.busy[name]:.0%}"
            for name, peak in self.peaks.items()
        ]
        if self.away or self.fetched:
            lines.append(
                f"away: {in_bytes(self.away)} of {in_bytes(self.variables)} of weights and "
                f"optimizer state; per step {in_bytes(self.fetched)} are fetched, "
                f"{in_bytes(self.put)} put away"
            )
        if self.again:
            lines.append(f"again: {self.again:,} operators run a second time to save memory")
        if self.blocks_away:
            part = self.blocks_away / self.blocks
            lines.append(
                f"as whole blocks: blocks_to_swap {round(self.blocks_away)} of {self.blocks} "
                f"(musubi-tuner), layer_offload_fraction {part:.2f} (OneTrainer), "
                f"layer_offloading_transformer_percent {part:.2f} (ai-toolkit)"
            )
        return lines

    def _others(self) -> list[str]:
        lines = []
        for name, step in self.others.items():
            if step is None:
                lines.append(f"{name}: does not fit")
            elif self.step_ns is None:
                lines.append(f"{name}: fits, {in_time(step)} a step")
            else:
                less = self.step_ns - step
                change = f"{in_time(abs(less))} {'less' if less > 0 else 'more'}"
                lines.append(f"{name}: {in_time(step)} a step, {change if less else 'as long'}")
        return lines


def in_count(number: int) -> str:
    """Write a number of parameters: 8.03 B."""
    for unit, size in (("B", 10**9), ("M", 10**6), ("K", 10**3)):
        if number >= size:
            return f"{number / size:.3g} {unit}"
    return str(number)


def _best(step: Step, cluster: Cluster, budget: str | float) -> Plan | DoesNotFit:
    """Plan with second runs, and with the host's memory if there is one."""
    way = "residency" if any(device.kind == HOST for device in cluster.devices) else "recompute"
    try:
        return place_graph(step.graph, cluster, budget=budget, suggest=False, **{way: "auto"})  # type: ignore[arg-type]
    except DoesNotFit as answer:
        return answer


def _others(
    step: Step, setup: Setup, budget: str | float, now: Plan | DoesNotFit
) -> dict[str, int | None]:
    step_ns = now.makespan_ns if isinstance(now, Plan) else None
    near = isinstance(now, Plan) and now.gap is not None and now.gap < _NEAR
    others: dict[str, Callable[[], Cluster | None]] = {"one more card": setup.one_more}
    if setup.host:
        others["PCIe 5"] = partial(setup.with_host_link, "pcie5")
    elif step.variables and not near:  # near the best possible: it would bring nothing
        others["with host memory"] = setup.with_host
    found: dict[str, int | None] = {}
    for name, other in others.items():
        try:
            cluster = other()
        except InputError:  # links of a file say nothing of it; a host's memory may be the card's
            continue
        if cluster is None:
            continue
        plan = _best(step, cluster, budget)
        found[name] = None
        if isinstance(plan, Plan):  # what is there need not be used
            found[name] = min(plan.makespan_ns, step_ns or plan.makespan_ns)
    return found


def _assumed(setup: Setup, costing: Costing, optimizer: str, step: Step) -> str:
    speeds = ", ".join(setup.kinds)
    if step.is_own:
        return f"assumes {speeds} at 60% of its peak and 75% of its memory's; nothing was measured"
    keeps = f"; {optimizer} keeps {costing.state} bytes a parameter" if costing.training else ""
    host = "; the host updates at 38 GB/s" if setup.host and costing.training else ""
    return (
        f"assumes {speeds} at 60% of its {costing.precision} peak and 75% of its memory's{keeps}"
        f"{host}; nothing was measured"
    )


def _away(step: Step, setup: Setup, plan: Plan) -> dict[str, Any]:
    """Say what the host keeps, and what goes to and fro."""
    if setup.host is None or not step.variables:
        return {}
    home = plan.device_of
    kept = {name for name in step.variables if home.get(name) == setup.host}
    blocks = step.blocks or {}
    total = sum(step.variables[name] for name in blocks)
    part = sum(step.variables[name] for name in blocks if name in kept) / max(1, total)
    count = len(set(blocks.values()))
    return {
        "away": sum(step.variables[name] for name in kept),
        "put": sum(t[3] for t in plan.transfers if t[2] == setup.host),
        "fetched": sum(t[3] for t in plan.transfers if t[1] == setup.host),
        "blocks": count,
        "blocks_away": part * count if kept and count else None,
    }


def _one_of(name: str, value: str, names: Any) -> None:
    if not isinstance(value, str) or value not in names:
        near = did_you_mean(value, names)
        raise InputError(f"{name}: expected one of {', '.join(names)}, found {value!r}{near}")


def estimate(
    model: str | os.PathLike[str],
    cluster: ClusterLike,
    *,
    batch: int = 1,
    length: int | None = None,
    size: int | None = None,
    lora: int = 0,
    quantize: str | None = None,
    inference: bool = False,
    optimizer: str = "adamw",
    precision: str = "bf16",
    device: str = "rtx4090",
    budget: str | float = "500ms",
    compare: bool = True,
) -> Estimate:
    """Say whether a model's step fits a cluster, how long it takes, and what would help.

    Args:
        model: A config.json of transformers or diffusers, a folder with one, or "module:function":
            a function that returns a PyTorch model and example inputs. No weights are needed.
        cluster: As in ``place_graph``: "1x24GiB+host", "2xrtx3090", "1xrtx4090+host:64GiB".
        batch: Samples of one step.
        length: Tokens of each text; 2,048 unless the model takes fewer. Frames of each video; 81.
        size: Pixels a side of each picture; what the model was made for.
        lora: The rank of adapters, which alone train; 0 trains all weights.
        quantize: How weights beneath adapters are kept: nf4, int8 or fp8.
        inference: One forward pass, where a whole training step is the default.
        optimizer: adamw, adamw-bf16, adamw-8bit or sgd.
        precision: bf16, fp16, tf32 or fp32.
        device: The preset that stands for plain devices ("24GiB"): see ``device_presets()``.
        budget: How long each search may take.
        compare: Whether to plan for one more card and for a faster host link as well.

    Raises:
        InputError: The file, the cluster or a value cannot be right.

    """
    for name, value in (("batch", batch), ("length", length), ("size", size)):
        if value is not None and (type(value) is not int or value < 1):
            raise InputError(f"{name}: expected a whole number above 0, found {value!r}")
    if type(lora) is not int or lora < 0:
        raise InputError(f"lora: expected a rank, a whole number from 0, found {lora!r}")
    _one_of("optimizer", optimizer, OPTIMIZERS)
    _one_of("precision", precision, _PRECISIONS)
    if quantize is not None:
        _one_of("quantize", quantize, QUANTIZED)
        if not lora and not inference:
            raise InputError(f"quantize {quantize}: such weights do not train; give lora, a rank")
    setup = Setup(cluster, device)
    costing = Costing(setup.presets, precision, not inference, lora, quantize, optimizer)
    if is_factory(os.fspath(model)):
        given = {
            "batch": batch != 1,
            "length": length is not None,
            "size": size is not None,
            "lora": lora != 0,
            "quantize": quantize is not None,
            "inference": inference,
            "precision": precision != "bf16",
            f"optimizer {optimizer}": optimizer not in ("adamw", "sgd"),
        }
        if ignored := next((name for name, is_given in given.items() if is_given), None):
            raise InputError(
                f"{ignored}: the model that a function makes says so itself: leave it out"
            )
        step = step_of_factory(os.fspath(model), costing)
    else:
        config, sizes = read_config(model, known()), Sizes(batch, length, size)
        is_known = config.architecture in known()
        found = None if is_known else step_of_class(config, sizes, costing)
        step = found or step_of(config, sizes, costing)
    return _answer(step, setup, _assumed(setup, costing, optimizer, step), budget, compare)


def _answer(step: Step, setup: Setup, assumed: str, budget: str | float, compare: bool) -> Estimate:
    plan = _best(step, setup.cluster, budget)
    others = _others(step, setup, budget, plan) if compare else {}
    told: dict[str, Any] = {
        "model": step.name,
        "step": step.shape,
        "parameters": step.parameters,
        "trained": step.trained,
        "others": others,
        "unit": step.unit,
        "variables": sum((step.variables or {}).values()),
        "assumed": assumed,
    }
    if not isinstance(plan, Plan):
        return Estimate(**told, fits=False, reason=plan.reason)
    return Estimate(
        **told,
        **_away(step, setup, plan),
        fits=True,
        step_ns=plan.makespan_ns,
        per_second=step.samples / (plan.makespan_ns / 1e9),
        above_bound=plan.gap,
        peaks=plan.peaks,
        capacities={d.name: d.capacity for d in setup.cluster.devices},
        busy={n: busy / plan.makespan_ns for n, busy in plan.busy_ns.items()},
        again=len(plan.recomputed),
        plan=plan,
    )
