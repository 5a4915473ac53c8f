# SPDX-License-Identifier: Apache-2.0
"""Runs an unmodified model over several devices (Paper 4.3, the Assigner).

Weights move to where the plan wants them, without a change of identity. Each call then runs in one
of two tiers: as a graph that torch.export made of the model (`Graphs`), or by the model's own code,
seen operator by operator (`EagerRunner`). Both use the same weights, streams and transfers
(`SentTensors`), so one call may run in the one tier and the next in the other.
"""

from __future__ import annotations

import functools
import threading
import weakref
from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import nn

from baechi._core import InputError
from baechi.progress import warn
from baechi.torch.base import _private, _private_autograd, _private_compile
from baechi.torch.base.devices import LogicalDevice
from baechi.torch.base.nested import dense_in, held_tensors, tensors_in
from baechi.torch.base.shared_memory import base_of
from baechi.torch.record.recorded_step import Capture
from baechi.torch.run.communication import MODES
from baechi.torch.run.eager import EagerRunner
from baechi.torch.run.graphs import Graphs, PlacedGraph, Tier2
from baechi.torch.run.placed_runs import PlacedRuns, on_device
from baechi.torch.run.sent_tensors import TAG, SentTensors
from baechi.torch.trace.exported import Exported
from baechi.torch.trace.graph import NotExportedError
from baechi.torch.trace.placement import GraphPlacement
from baechi.torch.trace.schedule import ORDER
from baechi.torch.weights.homes import homes_of_weights, named_weights, trained_leaves
from baechi.torch.weights.kept_weights import KeptWeights
from baechi.torch.weights.moved_weights import MovedWeights

NOT_RUN = "it has not run yet"


_MUCH = 16 << 20  # bytes of outputs that go to the CPU


class Assigner:
    """A model whose operators run where a placement says, from `install` until `remove`."""

    def __init__(
        self,
        model: nn.Module,
        captured: Capture,
        device_of: Mapping[str, int],
        devices: list[LogicalDevice],
        mode: str = "streams",
        tier2: Tier2 | None = None,
        *,
        collapse: bool = True,
        watch: Callable[[str, Any], None] | None = None,
        again: Collection[str] = (),
    ) -> None:
        self.mode = mode.removesuffix("+order")
        if self.mode not in MODES:
            raise InputError(f"mode is one of {', '.join(MODES)}, not {mode!r}")
        self.model = model
        self.captured = captured
        self.placement = dict(device_of)
        self.devices = devices
        self.full_mode = mode
        self._watch = watch  # told of every operator's outputs
        views = {op.key for op in captured.ops if op.only_views}  # are where their storage is
        self._device_of = {key: devices[i] for key, i in device_of.items() if key not in views}
        self.sent = SentTensors(devices, self.mode)
        self.again = frozenset(again)  # operators that run again in the backward, by key
        self.eager = EagerRunner(
            model,
            captured,
            self._device_of,
            self.sent,
            self,
            collapse=collapse,
            watch=watch,
            again=self.again,
        )
        self.graphs = None if tier2 is None else self._graphs_for(tier2)
        self.tier = 1  # of the last call
        self.note = NOT_RUN  # why that was not tier 2
        self._told_of_outputs = False
        self._told_of_weights = False
        self.refused = ""  # why no call of a part of the model can run
        self.call_elsewhere: Callable[[Any, Any], Any] | None = None  # runs those of the model
        self._weights = MovedWeights(model)
        self._kept: KeptWeights | None = None
        self._hooked: dict[int, Any] = {}  # by id: the weights whose gradients are noticed
        self._hooks: list[Any] = []
        self._callers: dict[torch.device, Any] = {}  # the caller's streams, in the last call
        self._running = threading.RLock()  # held by the thread that calls the model

    def _graphs_for(self, tier2: Tier2) -> Graphs:
        placement = GraphPlacement(
            self.placement,
            tier2.operators,
            push=self.mode == "streams",
            starts=tier2.starts if self.full_mode == ORDER else None,
            physical=self.places,
            again=tier2.again if self.captured.training else (),
        )
        runs = PlacedRuns(self.sent, self.run_again, on_device)
        return Graphs(self.model, tier2, placement, self.sent, self._set_aside, runs)

    @property
    def places(self) -> list[torch.device]:
        """The physical devices."""
        return [device.torch_device for device in self.devices]

    @property
    def weight_devices(self) -> dict[str, str]:
        """The cluster's device of every parameter and buffer, by name."""
        return self._weights.devices

    def watched(self, graph: Exported, watch: Callable[[str, Any], None]) -> Assigner:
        """Return an assigner of the same placement that shows what each call of `graph` makes."""
        mine = Tier2() if self.graphs is None else self.graphs.tier2
        tier2 = Tier2(True, None, True, [graph], mine.starts, mine.operators, mine.units)
        return Assigner(
            self.model,
            self.captured,
            self.placement,
            self.devices,
            self.full_mode,
            tier2,
            watch=watch,
        )

    # Putting in place

    def install(self) -> None:
        """Move the weights and put the wrappers in place; if it fails, all is as before."""
        self.eager.check_free()
        try:
            self._put_in_place()
        except BaseException:
            self.remove()
            raise

    def _put_in_place(self) -> None:
        _private_autograd.one_backward_thread.begin(self)
        goes = homes_of_weights(self.model, self.captured, self._device_of)
        self.sent.weight_ids.update(id(tensor) for tensor, _ in goes)
        self._weights.move(goes)
        for tensor, device in goes:
            self.sent.mark(tensor, device)
        self._kept = KeptWeights(self.model, self._retyped)
        self.eager.install()
        if self.graphs is not None:
            self.graphs.install(self.weight_devices, self._watch)

    def remove(self) -> None:
        """Take the wrappers away and move the weights back."""
        self.eager.remove()
        _private_autograd.one_backward_thread.end(self)
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()
        self._hooked.clear()
        if self._kept is not None:
            self._kept.remove()
        moved = self._weights.moved
        self._weights.bring_back(self.devices)
        for tensor in moved:
            if hasattr(tensor, TAG):
                delattr(tensor, TAG)
        self.sent.weight_ids.clear()
        if self.graphs is not None:
            self.graphs.remove()

    def fix_types(self, why: str) -> None:
        """Refuse from now on to change the type of the weights."""
        assert self._kept is not None
        self._kept.fixed = why

    def _retyped(self) -> None:
        if self.graphs is not None:
            self.graphs.retyped()

    def _set_aside(self) -> AbstractContextManager[None]:
        return self.eager.set_aside(self._running)

    # Running

    def run_call(self, path: str, run: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Run a call of the model, or of a part of it, that comes from outside.

        Args:
            path: Of the part; empty for the model.
            run: Runs its code, each operator on its device.
            args: Of the call.
            kwargs: Of the call.

        """
        if self.refused and path:
            raise InputError(self.refused)
        follower = _private.follower()
        if follower is not None:
            raise InputError(f"{follower} cannot follow a placed model: restore() it first")
        if self.call_elsewhere is not None:
            return self.call_elsewhere(args, kwargs)
        _private_autograd.one_backward_thread.here()  # also where another thread calls the model
        with self._running:
            try:
                return (self._run_part if path else self._run_model)(run, args, kwargs)
            except RuntimeError as error:
                self._weights.raise_if_elsewhere(error)
                raise

    def run_step(self, run: Callable[[], Any], given: Any) -> Any:
        """Run a step of micro-batches, or a part of one; `given`: all that it reads."""
        _private_autograd.one_backward_thread.here()
        with self._running:
            self._begin_behind_caller(given)
            try:
                found = run()
                self._keep_for_caller((given, found))
                return found
            except RuntimeError as error:
                self._weights.raise_if_elsewhere(error)
                raise
            finally:
                self.sent.join(from_caller=False)
                self.sent.call_is_over(given)

    def run_again(self, run: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Run a function again, in the backward."""
        with self._running:
            try:
                with (
                    _private_compile.eager()
                ):  # what dynamo made of our own code would wait for nothing
                    return self._behind_caller(run, args, kwargs)
            finally:
                if not self.eager.is_running:  # a forward that goes on would forget them
                    self.sent.call_is_over()

    def _run_model(self, run: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        tensors: list[torch.Tensor] = []
        home = next((t.device for t in tensors_in((args, kwargs))), self._weights.first_home)
        self.sent.home = home
        self.sent.autocast.begin(home)
        graph = self._graph_of(args, kwargs, tensors)
        if graph is not None:
            outputs = functools.partial(graph.run, tensors, self.sent)
            return graph.exported.rebuild(self._sent_home(outputs, tensors, home, is_model=True))
        try:
            with _private_compile.eager():
                whole = functools.partial(run, *args, **kwargs)
                return self._sent_home(whole, (args, kwargs), home, is_model=True)
        finally:
            if self.graphs is not None:
                self.graphs.ran_eagerly()

    def _graph_of(self, args: Any, kwargs: Any, tensors: list[torch.Tensor]) -> PlacedGraph | None:
        """Return the graph that runs a call, and collect its tensors; None: the model's code."""
        if self.graphs is None:
            return None
        try:
            graph = self.graphs.find(args, kwargs, tensors)
        except NotExportedError as reason:
            self.tier, self.note = 1, str(reason)
            if self.graphs.tier2.required and not len(self.graphs):
                raise InputError(
                    f"{type(self.model).__name__} cannot run in tier 2: {reason}"
                ) from reason
            return None
        self.tier, self.note = 2, ""
        return graph

    def _run_part(self, run: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Run a module while the model as a whole does not run."""
        with _private_compile.eager():
            if (
                _private_autograd.current_autograd_node() is not None
            ):  # what is computed again stays there
                return self._behind_caller(run, args, kwargs)
            home = next((t.device for t in tensors_in((args, kwargs))), None)
            return self._sent_home(functools.partial(run, *args, **kwargs), (args, kwargs), home)

    def _sent_home(
        self,
        run: Callable[[], Any],
        given: Any,
        home: torch.device | None,
        *,
        is_model: bool = False,
    ) -> Any:
        """Run a call between what its caller did before and does next.

        Args:
            run: Runs it.
            given: Its arguments.
            home: Where its caller wants what it returns; None: where it is made.
            is_model: It is the model as a whole.

        """
        sent = self.sent
        self._begin_behind_caller(given)
        out = None
        try:
            out = run()
            sent.join(from_caller=False)
            self._keep_for_caller((given, out))  # caches among the arguments hold tensors, too
            if is_model and home is not None and home.type == "cpu" and not self._told_of_outputs:
                self._told_of_outputs = _told_of_outputs(out)
            self._tell_of_weights(out, home)
            out = sent.all_sent_home(out, home)
            return out
        finally:
            sent.join(from_caller=False)
            sent.call_is_over(given, out)

    def _tell_of_weights(self, out: Any, home: torch.device | None) -> None:
        """Warn once where a call returns memory of a weight, of which its caller gets a copy."""
        if self._told_of_weights or home is None:
            return
        known = self.sent.weight_ids
        for tensor in tensors_in(out):
            whole = base_of(tensor)
            if id(whole) not in known or tensor.device == home:
                continue
            name = next((n for n, t in named_weights(self.model) if t is whole), None)
            if name is None:  # it was replaced, or another has its id
                continue
            warn(
                f"the model returns {name!r}, of which its caller gets a copy on {str(home)!r}: "
                "what changes that in place does not change the model"
            )
            self._told_of_weights = True
            return

    def _behind_caller(self, run: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Run a part behind what its caller did, and its caller behind it; all stays there."""
        self.sent.join(from_caller=True)
        try:
            out = run(*args, **kwargs)
        finally:
            self.sent.join(from_caller=False)
        self._keep_for_caller((args, kwargs, out))
        return out

    def _keep_for_caller(self, value: Any) -> None:
        if self.sent.own_streams:
            for tensor in held_tensors(value):
                self.sent.read_by_caller(tensor)

    # Gradients that the caller's optimizer reads

    def _begin_behind_caller(self, given: Any) -> None:
        """Begin behind what the caller's streams were asked to do, and remember these."""
        if self.sent.own_streams:
            if _private_autograd.current_autograd_node() is None:  # else it is one of autograd's
                for device in self.sent.own_streams:
                    callers = torch.accelerator.current_stream(device.torch_device)
                    self._callers[device.torch_device] = callers
            self._hook_trained()
        self.sent.join(from_caller=True)
        self.sent.call_begins(given)

    def _hook_trained(self) -> None:
        """Take note of weights that get gradients, also of those that are new."""
        for weight in trained_leaves(self.model):
            known = self._hooked.get(id(weight))
            if weight.device not in self._callers or (known is not None and known() is weight):
                continue
            self._hooked[id(weight)] = weakref.ref(weight)
            # PyTorch holds on to what a weight's hook knows even when nobody has the weight.
            keep = functools.partial(_keep_gradient, self._callers)
            self._hooks.append(weight.register_post_accumulate_grad_hook(keep))
            self._hooks.append(weight.register_hook(functools.partial(_keep, self._callers)))


def _keep_gradient(callers: Mapping[torch.device, Any], weight: torch.Tensor) -> None:
    """Let the optimizer read on the caller's stream a gradient made on a stream of ours."""
    _keep(callers, weight.grad)


def _keep(callers: Mapping[torch.device, Any], gradient: torch.Tensor | None) -> None:
    """Let the caller read a gradient, also one that `torch.autograd.grad` returns."""
    for tensor in dense_in(gradient):
        stream = callers.get(tensor.device)
        if stream is not None:
            _private.keep_for(tensor, stream)


def _told_of_outputs(out: Any) -> bool:
    """Warn where much goes to the CPU in every call, which takes long, as a loss there does."""
    trained = [t for t in tensors_in(out) if t.requires_grad and t.device.type != "cpu"]
    size = sum(t.numel() * t.element_size() for t in trained)
    if size < _MUCH:
        return False
    device = str(trained[0].device)
    warn(
        f"the model returns {size >> 20} MiB to the CPU in every call, since its input is there, "
        f"and a loss of it is computed there, too: give it inputs on {device!r}, and what it "
        "returns stays on that device"
    )
    return True
