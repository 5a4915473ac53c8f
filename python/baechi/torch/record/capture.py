# SPDX-License-Identifier: Apache-2.0
"""Graph Generator of PyTorch: one step of a model, recorded (Paper 4.1).

One forward and backward is run once, for real or on the meta device, and `recorder` watches it.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from baechi._core import InputError
from baechi.brief_errors import briefly
from baechi.progress import stage, warn
from baechi.torch.base import _private, _private_autograd, _private_compile
from baechi.torch.base.moving import moved_to, moved_values, own_leaves
from baechi.torch.base.nested import map_tensors, once, tensors_in
from baechi.torch.base.versions import check_version
from baechi.torch.record import function_caches
from baechi.torch.record.kernels import DispatcherSide
from baechi.torch.record.python_state import PythonState
from baechi.torch.record.recorded_step import LOSS, PRECISIONS, Capture
from baechi.torch.record.recorder import Recorder, recorder_of
from baechi.torch.record.refusals import check_dense
from baechi.torch.record.scopes import Scope
from baechi.torch.record.spilling import Spilling, spilled


def sum_of(outputs: Any) -> torch.Tensor:
    """Return the loss that stands in when none is given: the model's own, or the sum of all."""
    loss = getattr(outputs, "loss", None)
    if isinstance(loss, torch.Tensor):
        return loss
    parts = [t.float().sum() for t in tensors_in(outputs) if t.requires_grad]
    if not parts:
        raise InputError(
            "nothing that the model returns requires a gradient, so there is no step to train: "
            "give loss=, from what it returns to a scalar, or call model.eval() to place inference"
        )
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return total


def call_arguments(example: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return how a model is called on example inputs: a mapping is keywords, a tuple not."""
    if isinstance(example, Mapping):
        return (), dict(example)
    if isinstance(example, Sequence) and not isinstance(example, str):
        return tuple(example), {}
    return (example,), {}


@contextlib.contextmanager
def _same_random_state(devices: Iterable[torch.device]) -> Iterator[None]:
    """Put back the random states of the host and of devices; each has a generator of its own."""
    away = {device for device in devices if device.type not in ("cpu", "meta")}
    with contextlib.ExitStack() as stack:
        stack.enter_context(torch.random.fork_rng(devices=[]))
        for device in away:
            fork = torch.random.fork_rng(devices=[device.index], device_type=device.type)
            stack.enter_context(fork)
        yield


@contextlib.contextmanager
def unchanged(
    model: nn.Module, devices: Iterable[torch.device] = (), given: Any = None
) -> Iterator[None]:
    """Run a step that leaves no trace: all that a forward may change is put back, and gradients.

    Args:
        model: What runs.
        devices: Where it will draw random numbers, beside where it is.
        given: Its arguments.

    """
    weights = [*model.parameters(), *model.buffers()]
    grads = [(p, p.grad) for p in model.parameters()]
    for parameter, _ in grads:
        parameter.grad = None
    state = PythonState(model, given)
    try:
        with _same_random_state({*devices, *(w.device for w in weights)}):
            yield
    finally:
        torch.clear_autocast_cache()  # it keeps weights in other types, where they are now
        state.put_back()
        for parameter, grad in grads:
            parameter.grad = grad


@briefly
def capture(
    model: nn.Module,
    example_inputs: Any,
    *,
    loss: Callable[[Any], torch.Tensor] | None = None,
    training: bool | None = None,
    units: Any = "leaf",
    abstract: bool | None = None,
    again: Collection[str] = (),
) -> Capture:
    """Record one step of `model` on `example_inputs`: what its operators are and what they move.

    Args:
        model: Any module. On the meta device nothing is computed, so it may exceed the memory.
        example_inputs: A mapping of keyword arguments, a tuple of arguments, or the one argument.
        loss: From the model's output to a scalar; by default the output's own `loss`, else a sum.
        training: Record the backward too; by default, when the model is in training mode.
        units: Modules that become one operator: "leaf", classes, names or a predicate; or a graph
            by `export`, whose calls are the operators.
        abstract: Compute nothing, only shapes. By default for models on the meta device.
        again: The operators that run again in the backward, by key.

    """
    return _captured(model, example_inputs, None, loss, training, units, abstract, again)


def _captured(
    model: nn.Module,
    example_inputs: Any,
    spilling: Spilling | None,
    loss: Callable[[Any], torch.Tensor] | None = None,
    training: bool | None = None,
    units: Any = "leaf",
    abstract: bool | None = None,
    again: Collection[str] = (),
) -> Capture:
    if not isinstance(model, nn.Module):
        raise InputError(f"the model is of type {type(model).__name__}, not a torch.nn.Module")
    model = _private_compile.uncompiled(model)
    check_version()
    check_dense(model, example_inputs)
    valueless = [w for w in (*model.parameters(), *model.buffers()) if w.is_meta]
    on_meta = bool(valueless)
    if training is None:
        training = model.training and any(p.requires_grad for p in model.parameters())
    recorder = recorder_of(units, model)
    recorder.spilling = spilling
    recorder.repeat(again)
    args, kwargs = own_leaves(call_arguments(example_inputs))
    with contextlib.ExitStack() as stack:
        stack.enter_context(unchanged(model, given=(args, kwargs)))
        stack.enter_context(_private.same_versions(valueless))
        stack.enter_context(_private_compile.eager())
        change = stack.enter_context(_abstract(on_meta)) if abstract or on_meta else None
        if change is not None:
            stack.enter_context(function_caches.passed_by(model))
            args, kwargs = map_tensors(once(change), (args, kwargs))
        recorder.know_weights(change or (lambda t: t))
        recorder.install()
        stack.callback(recorder.remove)
        try:
            record_step(recorder, args, kwargs, loss or sum_of, training)
        except InputError:
            raise
        except Exception as error:
            raise InputError(recorder.sentence_of(error)) from error
    dtypes = [p.dtype for p in model.parameters()]
    return Capture(
        recorder.ops,
        recorder.tensors,
        recorder.weights,
        recorder.aliases,
        recorder.units,
        recorder.entries,
        recorder.exits,
        recorder.trace,
        recorder.autograd.finished(),
        recorder.seen,
        training,
        PRECISIONS.get(max(set(dtypes), key=dtypes.count), "fp32") if dtypes else "fp32",
        type(model).__name__,
        recorder.values,
        recorder.again.runs,
    )


@dataclass
class RecordingPlace:
    """Where steps are recorded: on a device, or on the CPU once that was too small for a kernel.

    The weights go there for the time of a recording; what has no room beside what runs is on the
    host meanwhile.
    """

    device: torch.device
    too_small: bool = False

    @stage("recording")
    def capture(self, model: nn.Module, example_inputs: Any, **options: Any) -> Capture:
        """Record a step as `capture` does."""
        check_dense(model, example_inputs)
        if any(weight.is_meta for weight in (*model.parameters(), *model.buffers())):
            return capture(model, example_inputs, **options)
        if not self.too_small and self.device.type != "cpu":
            try:
                with spilled(self.device, model) as spilling:
                    inputs = moved_values(example_inputs, self.device)
                    return _captured(model, inputs, spilling, **options)
            except (RuntimeError, InputError) as error:
                if not _private.out_of_memory(error.__cause__ or error):
                    raise
                said = str(error)
            self.too_small = True
            gc.collect()  # what the attempt left on the device
            warn(
                f"{self.device} has no room for {type(model).__name__} even operator by operator: "
                f"a step is recorded on the CPU, whose kernels may need other memory: {said}"
            )
        host = torch.device("cpu")
        with moved_to(host, model):
            return capture(model, moved_values(example_inputs, host), **options)


def capture_on(
    device: torch.device, model: nn.Module, example_inputs: Any, **options: Any
) -> Capture:
    """Record a step on `device`, whose kernels may need other memory than the CPU's."""
    return RecordingPlace(device).capture(model, example_inputs, **options)


def record_step(
    recorder: Recorder,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    loss: Callable[[Any], torch.Tensor],
    training: bool,
    side: TorchDispatchMode | None = None,
) -> None:
    """Run one step under a recorder that is installed; `side` tells it what is dispatched."""
    hooks = torch.autograd.graph.saved_tensors_hooks(recorder.pack, recorder.unpack)
    with (
        side or DispatcherSide(recorder.dispatched),
        torch.set_grad_enabled(training),
        _private_autograd.one_backward_thread.wanted(recorder),  # this thread is watched
    ):
        with hooks if training else contextlib.nullcontext():
            outputs = recorder.model(*args, **kwargs)
            recorder.returns(tensors_in(outputs))
            if not training:
                recorder.finished()
                return
            scope = Scope(LOSS, LOSS)
            recorder.in_loss = True
            value = recorder.session(scope, loss, (outputs,), {})
        _check_is_loss(value)
        recorder.number_end()
        recorder.autograd.watch(value)
        recorder.forwarded()
        value.backward()
    recorder.finished()
    recorder.products.note(recorder.ops, (run.op for run in recorder.again.runs))
    places = recorder.autograd.places
    for seen in recorder.seen:
        if seen.node is not None:
            number, output = seen.node
            seen.node = (places[number], output) if number in places else None


def _check_is_loss(value: Any) -> None:
    found = f"a {type(value).__name__}"
    if isinstance(value, torch.Tensor):
        found = f"a tensor of shape {tuple(value.shape)}"
        if value.numel() == 1:
            if value.requires_grad:
                return
            found = "a number that no weight has a gradient of"
    raise InputError(
        f"loss: it gives {found}, and backward() starts from one number that weights have a "
        "gradient of, as from output.mean()"
    )


@contextlib.contextmanager
def _abstract(on_meta: bool) -> Iterator[Callable[[torch.Tensor], torch.Tensor]]:
    """Compute shapes only; yields what turns a real tensor into one without values."""
    if on_meta:
        with torch.device("meta"):
            yield lambda t: t if t.is_meta else torch.empty_like(t, device="meta")
        return
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        yield mode.from_tensor
