# SPDX-License-Identifier: Apache-2.0
"""Profiler of PyTorch: what every operator costs, estimated or measured (Paper 4.1, its Table 2).

The paper's five memory parts are here (a) `parameters`, (b) `outputs`, (c) `gradients`, (d) and (e)
the temporaries of the two directions; beside them what the sum of outputs misses: `saved`, the
bytes that an operator keeps for its backward and nobody else holds.
"""

from __future__ import annotations

import dataclasses
import functools
import gc
import json
import os
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from baechi._core import Cluster, InputError, roofline_time, write_text
from baechi.brief_errors import briefly
from baechi.presets import presets_of
from baechi.progress import stage, warn
from baechi.torch.base import _private
from baechi.torch.base.moving import moved_to, moved_values, own_leaves
from baechi.torch.base.nested import renewed, tensors_in
from baechi.torch.record.capture import call_arguments, capture, record_step, sum_of, unchanged
from baechi.torch.record.products import both_wanted, taken_apart
from baechi.torch.record.recorded_step import Capture, KernelRun, Op, Work, kept_ops
from baechi.torch.record.recorder import Recorder, recorder_of

if TYPE_CHECKING:
    from typing_extensions import Self

FORMAT = "baechi.torch costs 1"
DEFAULT_PRESET = "rtx2080"  # for devices that only say "gpu"


@dataclass
class OpCost:
    """Nanoseconds by device kind, and bytes."""

    forward: dict[str, int] = field(default_factory=dict)
    backward: dict[str, int] = field(default_factory=dict)
    # Of `backward`, the gradient by the weights; none where it is not taken apart.
    by_weights: dict[str, int] = field(default_factory=dict)
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
        write_text(path, json.dumps(document, indent=1) + "\n")

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read what `save` wrote."""
        try:
            document = json.loads(Path(path).read_text(encoding="utf-8"))
            if document["format"] != FORMAT:
                raise InputError(f"{path}: not costs of this version but {document['format']!r}")
            ops = {key: OpCost(**cost) for key, cost in document["ops"].items()}
            return cls(ops, document["source"])
        except OSError as error:
            raise InputError(f"{os.fspath(path)}: cannot open: {error.strerror}") from None
        except (json.JSONDecodeError, KeyError, TypeError) as error:
            raise InputError(f"{path}: not a file of costs: {error!r}") from None


def costed_ops(captured: Capture) -> dict[int, int | None]:
    """Return for every recorded operator the one of the graph that its time counts for.

    As `kept_ops`, but the view of a weight, which no operator made, counts for who reads it first.
    """
    stands = kept_ops(captured)
    for index in reversed(range(len(captured.ops))):
        if stands[index] is None:
            readers = sorted(r for reads in captured.ops[index].feeds.values() for r in reads)
            stands[index] = stands[readers[0]] if readers else None
    return stands


def folded_work(captured: Capture) -> dict[int, tuple[Work, Work]]:
    """Return the forward and backward work of the operators of the graph."""
    work: dict[int, tuple[Work, Work]] = {}
    for index in kept_ops(captured).values():
        if index is not None:
            work.setdefault(index, (Work(), Work()))
    for index, stand in costed_ops(captured).items():
        if stand is None:
            continue
        forward, backward = work.setdefault(stand, (Work(), Work()))
        forward.add(captured.ops[index].forward)
        backward.add(captured.ops[index].backward)
    return work


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


def estimate(
    captured: Capture, kinds: Mapping[str, str] | Cluster, *, adding: bool = False
) -> Costs:
    """Estimate what each operator takes, by a roofline on device presets: no hardware is needed.

    Args:
        captured: The recorded step.
        kinds: The preset for each device kind, or a cluster whose kinds name presets.
        adding: Gradients are added to those of the step before, and those by the weights of a
            product come apart, as in steps of micro-batches.

    """
    presets = presets_of(kinds, DEFAULT_PRESET) if isinstance(kinds, Cluster) else dict(kinds)
    costs = _memory(captured)
    for index, (forward, backward) in folded_work(captured).items():
        cost, op, added = costs[index], captured.ops[index], Work()
        if adding and cost.gradients:  # each is read twice and written once
            trained = [n for n in op.weights if captured.weights[n].trained]
            added = Work(bytes=3 * cost.gradients, kernels=len(trained))
        first, second = backward, None
        if adding and op.halves is not None:
            first, second = _apart(op, backward)
        (second or first).add(added)
        for kind, preset in presets.items():
            cost.forward[kind] = _roofline(preset, forward, captured.dtype)
            cost.backward[kind] = _roofline(preset, first, captured.dtype)
            if second is not None:
                cost.by_weights[kind] = _roofline(preset, second, captured.dtype)
                cost.backward[kind] += cost.by_weights[kind]
    return Costs({captured.ops[i].key: cost for i, cost in costs.items()}, "estimated")


def _apart(op: Op, backward: Work) -> tuple[Work, Work]:
    """Return the work of a backward in two; `backward`: with that of views."""
    assert op.halves is not None
    own, first = op.backward, dataclasses.replace(op.halves.by_inputs)
    views = Work(backward.flops - own.flops, backward.bytes - own.bytes)
    first.add(dataclasses.replace(views, kernels=backward.kernels - own.kernels))
    return first, dataclasses.replace(op.halves.by_weights)


_BUSY = 150e-6  # seconds; longer than the host takes to start a kernel under a dispatch mode


class Clock:
    """Times calls on the device where they run.

    One thread of the CPU is timed by its processor time, which other programs do not add to. An
    accelerator is kept busy before each call, so that the call has been started by the time it can
    run: else what the host takes to start it would count.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        one_thread = torch.get_num_threads() == 1
        self._now = time.thread_time_ns if one_thread else time.perf_counter_ns
        self._keep_busy = None if device.type == "cpu" else _private.work_for(device, _BUSY)

    def measure(self, call: Callable[[], Any]) -> tuple[Any, Callable[[], int]]:
        """Run a call; what tells the nanoseconds may be asked when the device has been waited for.

        Returns:
            What the call returns, and what tells how long it took.

        """
        if self._keep_busy is None:
            start = self._now()
            out = call()
            took = self._now() - start
            return out, lambda: took
        self._keep_busy()
        stream = torch.accelerator.current_stream(self._device)
        begin = torch.Event(self._device, enable_timing=True)
        end = torch.Event(self._device, enable_timing=True)
        stream.record_event(begin)
        out = call()
        stream.record_event(end)
        return out, lambda: round(begin.elapsed_time(end) * 1e6)

    def wait(self) -> None:
        """Wait for all that was measured."""
        if self._keep_busy is not None:
            torch.accelerator.synchronize(self._device)


class _Part(Enum):
    """What of a step a kernel is of."""

    FORWARD = "forward"
    BACKWARD = "backward"
    BY_WEIGHTS = "gradients by weights, where they are taken apart"


class _Stopwatch(TorchDispatchMode):
    """Times every kernel of a recorded step and books it to the operator that it is part of."""

    def __init__(self, recorder: Recorder, clock: Clock, *, apart: bool) -> None:
        super().__init__()
        self._recorder, self._clock = recorder, clock
        self._apart = apart  # gradients by inputs and by weights
        self.kernels: dict[tuple[int, _Part], list[str]] = {}
        self._times: dict[tuple[int, _Part], list[Callable[[], int]]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self._apart and both_wanted(func, args):
            (first, took), (second, took_too) = [
                self._clock.measure(functools.partial(func, *half, **kwargs))
                for half in taken_apart(args)
            ]
            out = (first[0], *second[1:])
        else:
            out, took = self._clock.measure(functools.partial(func, *args, **kwargs))
            took_too = None
        before = len(self._recorder.trace)
        self._recorder.dispatched(func, args, kwargs, out)
        run = self._recorder.trace[-1] if len(self._recorder.trace) > before else None
        if isinstance(run, KernelRun) and not func.is_view:
            part = _Part.BACKWARD if run.backward else _Part.FORWARD
            if self._apart and run.backward and self._recorder.products.is_by_weights:
                part = _Part.BY_WEIGHTS
            self._book(run.op, part, func, took)
            if took_too is not None:
                self._book(run.op, _Part.BY_WEIGHTS, func, took_too)
        return out

    def _book(self, op: int, part: _Part, func: Any, took: Callable[[], int]) -> None:
        self.kernels.setdefault((op, part), []).append(str(func))
        self._times.setdefault((op, part), []).append(took)

    def times(self) -> dict[tuple[int, _Part], int]:
        """Return the nanoseconds by operator and part of a step."""
        self._clock.wait()
        return {place: sum(took() for took in all_of) for place, all_of in self._times.items()}


class _Samples:
    """Times of operators; those that are alike share them."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._times: dict[Any, list[int]] = {}
        self._alike: dict[tuple[str, _Part], Any] = {}

    def add(self, ops: list[Op], watch: _Stopwatch) -> None:
        """Take in one step."""
        for (index, part), took in watch.times().items():
            op = ops[index]
            work = op.forward if part is _Part.FORWARD else op.backward
            what = (op.kind, self._settings(op), op.shapes, part, work.flops, work.bytes)
            alike = (*what, tuple(watch.kernels[index, part]))
            self._alike[op.key, part] = alike
            self._times.setdefault(alike, []).append(took)

    def _settings(self, op: Op) -> str:
        return "" if op.module is None else self._model.get_submodule(op.module).extra_repr()

    def median(self, key: str, part: _Part) -> int:
        """Return the nanoseconds of an operator; 0 if it runs no kernel."""
        alike = self._alike.get((key, part))
        return 0 if alike is None else round(statistics.median(self._times[alike]))


@briefly
def measure(
    model: nn.Module,
    example_inputs: Any,
    captured: Capture | None = None,
    *,
    kind: str = "*",
    units: Any = "leaf",
    repeats: int = 20,
    warm_up: int = 2,
    loss: Callable[[Any], torch.Tensor] | None = None,
    adding: bool = False,
) -> Costs:
    """Measure each operator in whole steps, forward and backward, where the model is now.

    An operator's time is that of its kernels. Sums of gradients count where they are taken, and
    the backward of a view with what made its storage. Medians over `repeats` steps, after `warm_up`
    ones that do not count, and over operators that are alike. Parameters, buffers, gradients and
    the random state are as before afterwards.

    Args:
        model: Any module with its weights.
        example_inputs: A mapping of keyword arguments, a tuple of arguments, or the one argument.
        captured: The step, if it was recorded before.
        kind: Of devices whose costs these are; "*" for any.
        units: As for `capture`.
        repeats: Steps that count.
        warm_up: Steps before these.
        loss: From the model's output to a scalar.
        adding: Gradients are added to those of the step before, and those by the weights of a
            product come apart, as in steps of micro-batches.

    """
    if captured is None:
        captured = capture(model, example_inputs, loss=loss, units=units)
    weights = list(model.parameters())
    if any(p.is_meta for p in weights):
        raise InputError("a model on the meta device cannot be measured; estimate its costs")
    args, kwargs = map(own_leaves, call_arguments(example_inputs))
    first = next(iter(weights), None)
    if first is None:
        first = next(tensors_in((args, kwargs)), torch.empty(0))
    clock, samples = Clock(first.device), _Samples(model)
    with unchanged(model, given=(args, kwargs)):
        for step in range(warm_up + repeats):
            if not adding:
                model.zero_grad()
            recorder = recorder_of(units, model)
            recorder.know_weights(lambda tensor: tensor)
            watch = _Stopwatch(recorder, clock, apart=adding)
            recorder.install()
            try:
                own_args, own_kwargs = renewed((args, kwargs))
                record_step(
                    recorder, own_args, own_kwargs, loss or sum_of, captured.training, watch
                )
            finally:
                recorder.remove()
            if step >= warm_up:
                samples.add(recorder.ops, watch)
    costs = _memory(captured)
    stands = costed_ops(captured)
    for cost in costs.values():
        cost.forward[kind] = cost.backward[kind] = 0
    for index, op in enumerate(captured.ops):
        stand = stands[index]
        if stand is not None:
            cost, by_weights = costs[stand], samples.median(op.key, _Part.BY_WEIGHTS)
            cost.forward[kind] += samples.median(op.key, _Part.FORWARD)
            cost.backward[kind] += samples.median(op.key, _Part.BACKWARD) + by_weights
            if adding and op.halves is not None and stand == index:
                cost.by_weights[kind] = by_weights
    return Costs({captured.ops[i].key: cost for i, cost in costs.items()}, "measured")


@stage("measuring")
def measure_on(
    devices: Mapping[str, torch.device],
    model: nn.Module,
    example_inputs: Any,
    captured: Capture,
    **options: Any,
) -> Costs:
    """Measure each operator on a device of every kind, where the model goes for that time.

    A model that does not fit on the only kind there is gets measured where it is.
    """
    if any(p.is_meta for p in model.parameters()):
        return measure(model, example_inputs, captured)  # says why not
    total: Costs | None = None
    for kind, device in devices.items():
        try:
            with moved_to(device, model):
                inputs = moved_values(example_inputs, device)
                found = measure(model, inputs, captured, kind=kind, **options)
        except torch.OutOfMemoryError:
            found = None
        if found is None:
            gc.collect()  # what the attempt left on the device
            if len(devices) > 1:
                raise InputError(
                    f"{type(model).__name__} does not fit on {device} as a whole, so its operators "
                    "cannot be measured there: estimate them, or measure a smaller batch"
                )
            warn(
                f"{type(model).__name__} does not fit on {device} as a whole: its operators are "
                "measured where it is"
            )
            found = measure(model, example_inputs, captured, kind=kind, **options)
        total = found if total is None else _both(total, found)
    assert total is not None  # a cluster has a device
    return total


def _both(some: Costs, others: Costs) -> Costs:
    """Return the costs of the kinds of both."""
    ops = {}
    for key, cost in some.ops.items():
        other = others.ops[key]
        forward = {**cost.forward, **other.forward}
        backward = {**cost.backward, **other.backward}
        apart = {**cost.by_weights, **other.by_weights}
        ops[key] = dataclasses.replace(cost, forward=forward, backward=backward, by_weights=apart)
    return Costs(ops, some.source)
