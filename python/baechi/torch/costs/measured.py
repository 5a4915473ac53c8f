# SPDX-License-Identifier: Apache-2.0
"""Measured costs: each distinct call is run alone, once on each kind of device.

Paper 4.1.
"""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import fx, nn

from baechi._core import InputError
from baechi.brief_errors import briefly
from baechi.torch.capture.cache import captured
from baechi.torch.capture.keys import is_call, shown_by
from baechi.torch.capture.step import Step
from baechi.torch.capture.trace import device_of
from baechi.torch.costs.costs import FEW, MANY, Costs, signature_of, traffic_of, updated
from baechi.torch.devices import usable

_BUSY = 150e-6  # seconds; longer than the host takes to ask for a call
_BESIDE = 8  # times a weight: its gradient, state, and what an update makes on its way
REPEATS = 3  # the median of them counts, behind one that does not


class Clock:
    """Times calls on one device, by its own clock; a busy device hides what the host takes."""

    def __init__(self, device: torch.device, now: Callable[[], int] | None = None) -> None:
        """Take a device, and for the CPU what tells nanoseconds."""
        self.device = device
        alone = time.thread_time_ns if torch.get_num_threads() == 1 else time.perf_counter_ns
        self._alone = now or alone
        self._busy = None if device.type == "cpu" else _work_for(device, _BUSY)

    def time(self, call: Callable[[], Any]) -> int:
        """Return the nanoseconds of a call."""
        if self._busy is None:
            start = self._alone()
            call()
            return self._alone() - start
        begin, end = (torch.Event(self.device, enable_timing=True) for _ in range(2))
        stream = torch.accelerator.current_stream(self.device)
        self._busy()
        stream.record_event(begin)
        call()
        stream.record_event(end)
        torch.accelerator.synchronize(self.device)
        return round(begin.elapsed_time(end) * 1e6)

    def held(self, call: Callable[[], Any]) -> int:
        """Return the bytes that a call held at most while it ran, less what it returned."""
        if self._busy is None:
            call()
            return 0
        memory = torch.accelerator
        memory.synchronize(self.device)
        memory.reset_peak_memory_stats(self.device)
        before = memory.memory_allocated(self.device)
        out = call()
        memory.synchronize(self.device)
        kept = memory.memory_allocated(self.device) - before
        peak = int(memory.max_memory_allocated(self.device)) - before
        del out
        return max(0, peak - kept)


def _work_for(device: torch.device, seconds: float) -> Callable[[], Any]:
    """Return what keeps an accelerator busy for about so long."""
    module = getattr(torch, device.type)
    if hasattr(module, "work"):  # simulated devices
        return lambda: module.work(seconds, device)
    idle = torch.empty(round(1e12 * seconds), dtype=torch.uint8, device=device)  # at 1 TB/s
    return idle.zero_


def _filled(value: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Return a tensor with memory like one that has only a shape; indices are all 0."""
    made = torch.empty_strided(value.size(), value.stride(), dtype=value.dtype, device=device)
    return made.fill_(0.5 if value.is_floating_point() else 0)


def _arguments(node: fx.Node, device: torch.device) -> tuple[Any, Any]:
    """Return arguments for a call; a workspace comes from the call that makes it.

    Its bytes have a meaning that only the kernel knows: some crash on others.
    """

    def of(read: fx.Node) -> Any:
        value, maker = read.meta.get("val"), shown_by(read)
        if not isinstance(value, torch.Tensor):
            return value
        if value.dtype == torch.uint8 and maker is not None and is_call(maker):
            target: Any = maker.target
            args, kwargs = _arguments(maker, device)
            return target(*args, **kwargs)[read.args[1]]
        return _filled(value, device)

    args, kwargs = fx.map_arg((node.args, node.kwargs), of)
    named = {name: device if name == "device" else value for name, value in kwargs.items()}
    named.pop("pin_memory", None)
    return args, named


@briefly
def measure(
    model: nn.Module,
    example_inputs: Any,
    step: Step | None = None,
    *,
    loss: Callable[..., torch.Tensor] | None = None,
    targets: Any = None,
    devices: Mapping[str, str | torch.device] | str | torch.device | None = None,
    known: Costs | None = None,
) -> Costs:
    """Measure the calls of a step, each distinct one alone, with tensors of its shapes.

    The model does not run, stays where it is, and may be on the meta device.

    Args:
        model: Any module.
        example_inputs: A mapping of keyword arguments, a tuple of arguments, or the one argument.
        step: The model's, if it was captured before.
        loss: As `capture` takes it, with `targets`.
        targets: What the loss compares with.
        devices: A device for each kind of the cluster, as {"gpu": "cuda:0", "cpu": "cpu"}; or
            one, which stands for all kinds: by default where the weights are, else the CPU.
        known: Measured before, and not again.

    """
    where = device_of(model) if devices is None else devices
    kinds = where if isinstance(where, Mapping) else {"*": where}
    there = {kind: usable(device) for kind, device in kinds.items()}
    if not there or any(device.type == "meta" for device in there.values()):
        raise InputError("devices: name one that can compute, as {'gpu': 'cuda:0', 'cpu': 'cpu'}")
    if step is None:
        accelerator = next((device for device in there.values() if device.type != "cpu"), None)
        step = captured(model, example_inputs, loss, targets, device=accelerator)
    return measured(step.keys, there, known)


def measured(
    calls: Iterable[fx.Node], devices: Mapping[str, torch.device], known: Costs | None = None
) -> Costs:
    """Measure calls of a step, each signature once on the device of each kind; see `measure`."""
    costs = Costs(f"measured with PyTorch {torch.__version__}")
    if known is not None:
        costs.add(known)
    distinct: dict[str, fx.Node] = {}
    for node in calls:
        distinct.setdefault(signature_of(node), node)
    everywhere = [device for device in devices.values() if device.type not in ("cpu", "meta")]
    types = {device.type for device in everywhere}
    with (
        torch.inference_mode(),  # below autograd, as programs run them
        torch.random.fork_rng(
            [d.index or 0 for d in everywhere], device_type=types.pop() if types else "cpu"
        ),
    ):
        for kind, device in devices.items():
            _measure_moving(costs, kind, device)
            clock = Clock(device)
            for signature, node in distinct.items():
                if kind not in costs.times.get(signature, {}):
                    _measure(costs, signature, node, kind, clock, device)
    return costs


def _measure(
    costs: Costs, signature: str, node: fx.Node, kind: str, clock: Clock, device: torch.device
) -> None:
    costs.runs += 1
    target: Any = node.target
    try:
        args, kwargs = _arguments(node, device)
        held = clock.held(lambda: target(*args, **kwargs))
        taken = [clock.time(lambda: target(*args, **kwargs)) for _ in range(REPEATS)]
        found = round(statistics.median(taken))
    except (RuntimeError, ValueError, IndexError, NotImplementedError):
        # It wants values that are not made up (an index, a positive definite matrix).
        held, found = 0, costs.of_bytes(traffic_of(node), kind)
    costs.times.setdefault(signature, {})[kind] = found
    costs.temporary[signature] = max(held, costs.temporary.get(signature, 0))


def _measure_moving(costs: Costs, kind: str, device: torch.device) -> None:
    clock, taken = Clock(device), []
    counts = (FEW, max(2 * FEW, min(MANY, room_on(device))))
    for count in counts:
        half = torch.zeros(count // 2, dtype=torch.uint8, device=device)
        half.clone()
        taken.append(statistics.median(clock.time(half.clone) for _ in range(REPEATS)))
    costs.set_of_bytes(kind, *_on_a_line(taken, counts))


def measure_updates(
    costs: Costs,
    optimizer: str,
    made: Callable[[torch.Tensor], torch.optim.Optimizer],
    dtypes: Collection[torch.dtype],
    clocks: Mapping[str, Clock],
) -> None:
    """Measure what an optimizer takes for a weight of each type, on each kind of device.

    One that cannot run alone stays without costs of its own.
    """
    for kind, clock in clocks.items():
        counts = (FEW, max(2 * FEW, min(MANY, room_on(clock.device) // _BESIDE)))
        for dtype in dtypes:
            with contextlib.suppress(RuntimeError, ValueError, TypeError, AssertionError):
                taken = [_update_time(made, dtype, count, clock) for count in counts]
                costs.set_of_bytes(kind, *_on_a_line(taken, counts), updated(optimizer, dtype))


def _update_time(
    made: Callable[[torch.Tensor], torch.optim.Optimizer],
    dtype: torch.dtype,
    count: int,
    clock: Clock,
) -> float:
    shape = (32, count // dtype.itemsize // 32)  # some treat matrices otherwise
    weight = nn.Parameter(torch.ones(shape, dtype=dtype, device=clock.device))
    weight.grad = torch.ones_like(weight)
    step = made(weight).step
    step()  # makes its state
    return statistics.median(clock.time(step) for _ in range(REPEATS))


def room_on(device: torch.device) -> int:
    """Return how many bytes a measurement may take."""
    is_host = device.type in ("cpu", "meta")
    free = 2 * MANY * _BESIDE if is_host else int(torch.accelerator.get_memory_info(device)[0])
    return free // 2


def _on_a_line(taken: Sequence[float], counts: Sequence[int]) -> tuple[int, int]:
    """Return what FEW and MANY bytes take, from what FEW and other ones do."""
    few = taken[0]
    many = few + (max(taken) - few) * (MANY - FEW) / (counts[1] - FEW)
    return round(few), round(many)
