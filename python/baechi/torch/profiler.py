# SPDX-License-Identifier: Apache-2.0
"""Profiler of PyTorch: what every operator costs, estimated or measured (Paper 4.1, its Table 2).

The paper's five memory parts are here (a) `parameters`, (b) `outputs`, (c) `gradients`, (d) and (e)
the temporaries of the two directions; beside them what the sum of outputs misses: `saved`, the
bytes that an operator keeps for its backward and nobody else holds.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from baechi._core import Cluster, InputError, device_presets, roofline_time
from baechi.torch.capture import (
    Capture,
    Work,
    call_arguments,
    sum_of,
    unchanged,
    unit_test,
)
from baechi.torch.interception import Interceptor, Scope
from baechi.torch.nested import map_tensors, tensors_in

if TYPE_CHECKING:
    from typing_extensions import Self

FORMAT = "baechi.torch costs 1"
DEFAULT_PRESET = "rtx2080"  # for devices that only say "gpu"
OPTIMIZERS = {"none": 0, "sgd": 0, "momentum": 1, "rmsprop": 1, "adam": 2, "adamw": 2}


@dataclass
class OpCost:
    """Nanoseconds by device kind, and bytes."""

    forward: dict[str, int] = field(default_factory=dict)
    backward: dict[str, int] = field(default_factory=dict)
    parameters: int = 0
    buffers: int = 0
    gradients: int = 0
    outputs: int = 0
    saved: int = 0
    forward_temporary: int = 0
    backward_temporary: int = 0


@dataclass
class Costs:
    """The cost of every operator of a capture, by its key."""

    ops: dict[str, OpCost]
    source: str  # "estimated" or "measured"

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write JSON."""
        ops = {key: dataclasses.asdict(cost) for key, cost in self.ops.items()}
        document = {"format": FORMAT, "source": self.source, "ops": ops}
        Path(path).write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read what `save` wrote."""
        try:
            document = json.loads(Path(path).read_text(encoding="utf-8"))
            if document["format"] != FORMAT:
                raise InputError(f"{path}: not costs of this version but {document['format']!r}")
            ops = {key: OpCost(**cost) for key, cost in document["ops"].items()}
            return cls(ops, document["source"])
        except (json.JSONDecodeError, KeyError, TypeError) as error:
            raise InputError(f"{path}: not a file of costs: {error!r}") from None


def kept_ops(captured: Capture) -> dict[int, int | None]:
    """Return for every recorded operator the one that stands for it in the graph.

    An operator that only makes views is part of the one that made their storage.
    """
    stands: dict[int, int | None] = {}
    for index, op in enumerate(captured.ops):
        if not op.only_views:
            stands[index] = index
            continue
        writer = next((w for w in op.reads.values() if w is not None), None)
        stands[index] = None if writer is None else stands[writer]
    return stands


def folded_work(captured: Capture) -> dict[int, tuple[Work, Work]]:
    """Return the forward and backward work of the operators of the graph."""
    work: dict[int, tuple[Work, Work]] = {}
    for index, stand in kept_ops(captured).items():
        if stand is None:
            continue
        forward, backward = work.setdefault(stand, (Work(), Work()))
        forward.add(captured.ops[index].forward)
        backward.add(captured.ops[index].backward)
    return work


def presets_of(cluster: Cluster) -> dict[str, str]:
    """Return the preset that stands for every device kind of a cluster."""
    known = device_presets()
    kinds = {}
    for device in cluster.devices:
        if device.kind in known:
            kinds[device.kind] = device.kind
        elif device.kind == "gpu":
            kinds[device.kind] = DEFAULT_PRESET
        else:
            raise InputError(
                f"no preset stands for devices of kind {device.kind!r}: measure the costs, or name "
                f"the kind one of {', '.join(sorted(known))}"
            )
    return kinds


def _memory(captured: Capture) -> dict[int, OpCost]:
    """Return the operators' memory, without times; a shared weight counts at its first user."""
    costs: dict[int, OpCost] = {}
    first_user: dict[str, int] = {}
    last_user: dict[str, int] = {}
    for index, (forward, backward) in folded_work(captured).items():
        op = captured.ops[index]
        mine = set(op.made)
        costs[index] = OpCost(
            outputs=sum(captured.tensors[t].bytes for t in op.made if t not in op.saved),
            saved=sum(captured.tensors[t].bytes for t in op.saved if t in mine),
            forward_temporary=forward.temporary,
            backward_temporary=backward.temporary,
        )
        for name in op.weights:
            first_user.setdefault(name, index)
            if op.grads:
                last_user[name] = index
    for name, index in first_user.items():
        weight = captured.weights[name]
        if weight.trained:
            costs[index].parameters += weight.bytes
        else:
            costs[index].buffers += weight.bytes
    if captured.training:
        for name, index in last_user.items():
            if captured.weights[name].trained:
                costs[index].gradients += captured.weights[name].bytes
    return costs


def _roofline(preset: str, work: Work, precision: str) -> int:
    if work.kernels == 0:
        return 0
    launch = roofline_time(preset, 0, 0)
    once = roofline_time(preset, work.flops, work.bytes, precision=precision)
    return once + (work.kernels - 1) * launch


def estimate(captured: Capture, kinds: Mapping[str, str] | Cluster) -> Costs:
    """Estimate what each operator takes, by a roofline on device presets: no hardware is needed.

    Args:
        captured: The recorded step.
        kinds: The preset for each device kind, or a cluster whose kinds name presets.

    """
    presets = presets_of(kinds) if isinstance(kinds, Cluster) else dict(kinds)
    costs = _memory(captured)
    for index, (forward, backward) in folded_work(captured).items():
        for kind, preset in presets.items():
            costs[index].forward[kind] = _roofline(preset, forward, captured.dtype)
            costs[index].backward[kind] = _roofline(preset, backward, captured.dtype)
    return Costs({captured.ops[i].key: cost for i, cost in costs.items()}, "estimated")


class _Clock:
    """Times calls on the device where they run."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def measure(self, call: Callable[[], Any]) -> tuple[Any, int]:
        if self._device.type == "cpu":
            start = time.perf_counter_ns()
            out = call()
            return out, time.perf_counter_ns() - start
        stream = torch.accelerator.current_stream(self._device)
        begin = torch.Event(self._device, enable_timing=True)
        end = torch.Event(self._device, enable_timing=True)
        stream.record_event(begin)
        out = call()
        stream.record_event(end)
        end.synchronize()
        return out, round(begin.elapsed_time(end) * 1e6)


class _Stopwatch(Interceptor):
    """Runs every operator several times, alone, forward and backward."""

    def __init__(
        self, model: nn.Module, captured: Capture, units: Any, repeats: int, warm_up: int
    ) -> None:
        super().__init__(model, unit_test(units))
        stands = kept_ops(captured)
        self._kept = {op.key: op for i, op in enumerate(captured.ops) if stands[i] == i}
        self._training = captured.training
        self._repeats, self._warm_up = repeats, warm_up
        self._same: dict[Any, tuple[int, int]] = {}
        self.times: dict[str, tuple[int, int]] = {}

    def run_unit(
        self, scope: Scope, module: nn.Module, forward: Callable[..., Any], args: Any, kwargs: Any
    ) -> Any:
        key = scope.key or type(module).__name__
        shapes = tuple(tuple(p.shape) for p in module.parameters())
        same = (type(module), module.extra_repr(), shapes, module.training)
        self._time(key, same, list(module.parameters()), forward, args, kwargs)
        return forward(*args, **kwargs)

    def run_function(
        self, scope: Scope, index: int, name: str, call: Callable[..., Any], args: Any, kwargs: Any
    ) -> Any:
        plain = map_tensors(lambda t: t.new_empty(0, device="meta"), (args, kwargs))
        self._time(scope.function_key(index, name), (name, str(plain)), [], call, args, kwargs)
        return call(*args, **kwargs)

    def _time(
        self, key: str, same: Any, weights: list[Any], call: Any, args: Any, kwargs: Any
    ) -> None:
        op = self._kept.get(key)
        if op is None or key in self.times:
            return
        same = (same, op.shapes)
        if same not in self._same:
            self._same[same] = self._measured(weights, call, args, kwargs, bool(op.changed))
        self.times[key] = self._same[same]

    def _measured(
        self, weights: list[Any], call: Any, args: Any, kwargs: Any, changes: bool
    ) -> tuple[int, int]:
        device = next((t.device for t in tensors_in((args, kwargs))), torch.device("cpu"))
        clock = _Clock(device)
        forward, backward = [], []
        for _ in range(self._warm_up + self._repeats):
            leaves: list[torch.Tensor] = []

            def fresh(tensor: torch.Tensor, leaves: list[torch.Tensor] = leaves) -> torch.Tensor:
                if isinstance(tensor, nn.Parameter):
                    return tensor
                leaf = tensor.detach()
                if changes and not tensor.requires_grad:
                    leaf = leaf.clone()
                if not tensor.requires_grad:
                    return leaf
                leaves.append(leaf.requires_grad_())
                return leaf.clone() if changes else leaf

            mine, mine_too = map_tensors(fresh, args), map_tensors(fresh, kwargs)
            out, took = clock.measure(functools.partial(call, *mine, **mine_too))
            forward.append(took)
            outs = [t for t in tensors_in(out) if t.requires_grad and t.grad_fn is not None]
            wanted = leaves + [w for w in weights if w.requires_grad]
            wanted += [t for t in tensors_in((args, kwargs)) if isinstance(t, nn.Parameter)]
            wanted = [t for t in wanted if t.requires_grad]
            if not (self._training and outs and wanted):
                backward.append(0)
                continue
            ones = [torch.ones_like(t) for t in outs]
            grads = functools.partial(torch.autograd.grad, outs, wanted, ones, allow_unused=True)
            _, took = clock.measure(grads)
            backward.append(took)
        last = slice(self._warm_up, None)
        return round(statistics.median(forward[last])), round(statistics.median(backward[last]))


def measure(
    model: nn.Module,
    example_inputs: Any,
    captured: Capture,
    *,
    kind: str = "*",
    units: Any = "leaf",
    repeats: int = 20,
    warm_up: int = 3,
    loss: Callable[[Any], torch.Tensor] | None = None,
) -> Costs:
    """Measure each operator alone, forward and backward, where the model is now.

    Medians of `repeats` runs after `warm_up` ones that do not count. Operators that are alike are
    measured once. Parameters, buffers and the random state are as before afterwards.
    """
    if any(p.is_meta for p in model.parameters()):
        raise InputError("a model on the meta device cannot be measured; estimate its costs")
    args, kwargs = call_arguments(example_inputs)
    stopwatch = _Stopwatch(model, captured, units, repeats, warm_up)
    with unchanged(model), torch.set_grad_enabled(captured.training):
        stopwatch.install()
        try:
            outputs = model(*args, **kwargs)
            if captured.training:
                stopwatch.session(Scope("loss", "loss"), loss or sum_of, (outputs,), {})
        finally:
            stopwatch.remove()
    costs = _memory(captured)
    for index, cost in costs.items():
        forward, backward = stopwatch.times.get(captured.ops[index].key, (0, 0))
        cost.forward[kind], cost.backward[kind] = forward, backward
    return Costs({captured.ops[i].key: cost for i, cost in costs.items()}, "measured")
