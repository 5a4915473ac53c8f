# SPDX-License-Identifier: Apache-2.0
"""Placed: a model that runs over several devices, what it does there, and how it becomes plain."""

from __future__ import annotations

import functools
import os
import weakref
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from baechi._core import InputError, Plan
from baechi.brief_errors import briefly
from baechi.reports import report
from baechi.summary import Summary, on_one_device, summary
from baechi.torch.graph.optimizers import updates_of
from baechi.torch.planned_step import PlannedStep
from baechi.torch.private import call_uncompiled
from baechi.torch.program.peaks import GRANULE
from baechi.torch.request import Request
from baechi.torch.run.backend import Backend
from baechi.torch.run.calls import compile_calls
from baechi.torch.run.footprint import CallWalk, peak_of_loss, peaks_of_call, resident
from baechi.torch.run.mini_batch import samples_in
from baechi.torch.run.piecewise import piecewise
from baechi.torch.run.placement import Placement
from baechi.torch.run.steps import Steps
from baechi.torch.verification import Verification, verified
from baechi.torch.weights import checkpoint, named_state, sources
from baechi.torch.weights.parts import Parts
from baechi.torch.where import Homes, install
from baechi.torch.where.homes import named_tensors
from baechi.torch.where.hooks import batch_on

_PLACED: weakref.WeakSet[Placed] = weakref.WeakSet()


class Placed:
    """A model that runs over several devices, until `restore`."""

    _kind_of_steps: Callable[..., Steps] = Steps

    def __init__(self, planned: PlannedStep, asked: Request) -> None:
        self.model = model = asked.model
        self.asked = asked
        self.plan: Plan = planned.plan
        self.planned = planned
        self._devices = planned.devices
        index = {name: i for i, name in enumerate(planned.names)}
        homes = {name: index[device] for name, device in planned.homes.items()}
        self._placement = self._made_placement(
            model,
            planned.devices,
            {key: index[device] for key, device in planned.device_of_key.items()},
            homes,
            planned.starts,
            planned.again,
            planned.away,
            [
                device.capacity - self.plan.peaks[device.name]
                for device in self.plan.cluster.devices
            ],
            {name: index[device] for name, device in planned.batch.items()},
        )
        self._backend = self._made_backend()
        self._runs_on: dict[str, torch.device] = {}  # of what is away
        self._check_free(homes)
        self._install(homes)
        self._steps = self._made_steps()
        self._active = True
        _PLACED.add(self)

    def _check_free(self, homes: Mapping[str, int]) -> None:
        """Raise InputError where the model, or a weight that goes elsewhere, is placed already."""
        own = {id(t): name for name, t in named_tensors(self.model)}
        for other in [placed for placed in _PLACED if placed._active]:
            if other.model is self.model:
                raise InputError("model: it is placed already: restore() that first")
            for _, tensor in named_tensors(other.model):
                name = own.get(id(tensor), "")
                if name in homes and self._devices[homes[name]] != tensor.device:
                    theirs = type(other.model).__name__
                    raise InputError(
                        f"model: {name!r} is a weight of a {theirs}, too, which is "
                        f"placed and has it on {tensor.device}: restore() that first, or place "
                        "both as parts of one module"
                    )

    def _made_placement(self, *given: Any) -> Placement:
        how = self.asked.search
        return Placement(*given, compile=bool(how.compile), replay=how.replay)

    def _made_backend(self) -> Backend:
        return Backend(self._placement)

    def _install(self, homes: dict[str, int]) -> None:
        """Bring weights to their devices, and have calls run as planned."""
        self._installed = install(self.model, self._where(homes), self._placement.accelerators)
        compile_calls(self.model, self._backend)

    def _where(self, homes: Mapping[str, int]) -> Homes:
        """Return where weights are, and where modules run whose weights are away."""
        placement, read_on = self._placement, dict[str, torch.device]()
        for name, home in homes.items():
            is_away = home == placement.away.store
            if is_away or name in self.planned.step.tied:
                at = placement.of_module(name.rpartition(".")[0])
                device = placement.accelerators[0] if at is None else self._devices[at]
                (self._runs_on if is_away else read_on)[name] = device
        where = {name: self._devices[home] for name, home in homes.items()}
        return Homes(self.model, where, self._runs_on, read_on)

    def _made_steps(self) -> Steps | None:
        count = self.planned.micro_batches
        if self.asked.micro_batches is None and count == 1:
            return None
        samples = samples_in(self.asked.example_inputs, "example_inputs", self.asked.targets)
        return self._kind_of_steps(self.model, self.asked.loss, self._placement, count, samples)

    @briefly
    def step(self, inputs: Any, targets: Any = None, *, scaler: Any = None) -> torch.Tensor:
        """Run forward and backward of a mini-batch in the micro-batches that were planned.

        Gradients are added to those of the parameters: the mean over the samples.

        Args:
            inputs: A mini-batch, as example inputs are given; it may be smaller or larger.
            targets: What the loss is called with behind the output, as `place` was given them.
            scaler: A `torch.amp.GradScaler`, whose scale the gradients get, as by
                `scaler.scale(loss).backward()`. The loss that is returned has none.

        Returns:
            The mean of the micro-batches' losses by samples, without a gradient.

        """
        if self._steps is None:
            raise InputError(
                "step runs micro-batches: place(..., micro_batches=4), or another number"
            )
        if not self._active:
            raise InputError("the model is not placed any more: restore() was called")
        return self._steps(inputs, targets, scaler)

    def restore(self) -> nn.Module:
        """Undo everything: the model runs, and its weights are, where they were before."""
        if self._active:
            call_uncompiled(self.model)
            self._installed.remove()
            self._backend.end()
            self._active = False
        return self.model

    def __call__(self, *_: Any, **__: Any) -> None:
        """Raise TypeError: what is called is the model, as ever."""
        raise TypeError("call the model that was placed: model(inputs), or placed.model(inputs)")

    @property
    def program(self) -> str:
        """Every call, send and wait of what has run so far, as text: the graphs in their order."""
        parts = []
        for number, frame in enumerate(self._backend.frames):
            for name, program in frame.programs.items():
                parts.append(f"# graph {number}, {name}\n{program}")
            if frame.eager:
                parts.append(f"# graph {number} runs eagerly: {frame.eager}")
        for number, program in enumerate(self._steps.texts if self._steps else ()):
            parts.append(f"# step {number}\n{program}")
        return "\n\n".join(parts) or "# nothing has run yet: call the model, or step"

    @property
    def weight_devices(self) -> dict[str, str]:
        """The cluster's device of every parameter and buffer, by name."""
        return dict(self.planned.homes)

    @property
    def runs_on(self) -> dict[str, str]:
        """The physical device of each device of the cluster."""
        pairs = zip(self.planned.names, self._devices, strict=True)
        return {name: str(device) for name, device in pairs}

    @property
    def rank(self) -> int:
        """Which of the cluster's devices this process has, over ranks; else 0."""
        return 0

    def clip_grad_norm_(
        self, max_norm: float, norm_type: float = 2.0, *, error_if_nonfinite: bool = False
    ) -> torch.Tensor:
        """Clip gradients by the norm of all of them, which over ranks are on several."""
        weights = self.model.parameters()
        return torch.nn.utils.clip_grad_norm_(weights, max_norm, norm_type, error_if_nonfinite)

    def optimizer(
        self, kind: type[torch.optim.Optimizer], params: Any = None, **options: Any
    ) -> torch.optim.Optimizer:
        """Make an optimizer that updates weights on the host piece by piece on their devices.

        Args:
            kind: SGD, Adam, AdamW, Adamax, NAdam, RAdam, RMSprop, Adagrad, Adadelta, ASGD, Rprop
                or Adafactor of torch.optim.
            params: As optimizers take them; by default all parameters of the model.
            options: Of the class, such as lr.

        """
        given = self.model.parameters() if params is None else params
        return piecewise(kind, given, options, self._room)

    def _room(self) -> dict[torch.device, tuple[int, list[torch.Tensor]]]:
        """Return what is free on each device, and which weights that are away it updates."""
        there: dict[torch.device, list[torch.Tensor]] = {}
        named = self.model.named_parameters() if self._active else ()
        away = [(self._runs_on[n], w) for n, w in named if n in self._runs_on and w.requires_grad]
        share = self.planned.host_share
        sizes = sorted(range(len(away)), key=lambda i: away[i][1].nbytes)
        # The host has its share of weights of all sizes.
        on_host = {i for n, i in enumerate(sizes) if int((n + 1) * share) > int(n * share)}
        for i, (at, weight) in enumerate(away):
            if i not in on_host:
                there.setdefault(at, []).append(weight)
        granted, taken = self._granted(), torch.accelerator.memory_allocated
        return {at: (max(granted[at] - taken(at), 0), those) for at, those in there.items()}

    def _granted(self) -> dict[torch.device, int]:
        """Return the bytes that the cluster has of each device that is here."""
        devices = zip(self._devices, self.plan.cluster.devices, strict=True)
        return {at: device.capacity for at, device in devices}

    @property
    def peaks(self) -> dict[str, int]:
        """The most bytes that each device holds in a step: of the programs that have run.

        It is their memory, by walking them, with weights, buffers and the optimizer's state.
        Before anything has run it is what the plan foresees.
        """
        walked = [walk.peaks() for walk in (self._steps.walks if self._steps else {}).values()]
        foreseen = self.plan.run_peaks or self.plan.peaks
        part = False  # of what ran was walked
        for trained in self._backend.trained():
            graphs = [CallWalk.of(*graph) for graph in trained.items()]
            whole = [graph for graph in graphs if graph is not None]
            part |= len(whole) < len(graphs)
            if len(whole) == len(graphs):
                of_loss = [peak_of_loss(self.planned.step), *[0] * (len(self._devices) - 1)]
                walked.append(peaks_of_call(whole, of_loss))
        if not walked and not part:
            return dict(foreseen)
        there, update = resident(self.model, self._devices, updates_of(self.asked.optimizer))
        update[0] += GRANULE  # the loss, which a script still holds
        most = map(max, zip(*walked, update, strict=True))
        pairs = zip(self.planned.names, there, most, strict=True)
        found = {name: held + more for name, held, more in pairs}
        return {n: max(size, foreseen[n]) for n, size in found.items()} if part else found

    @property
    def left_out(self) -> list[str]:
        """Why parts of the model run eagerly, where some do."""
        backend = self._backend
        found = [*(frame.eager for frame in backend.frames if frame.eager), *backend.uncompiled]
        return [*found, self._steps.by_calls] if self._steps and self._steps.by_calls else found

    @briefly
    def verify(
        self,
        inputs: Any,
        *,
        loss: Callable[[Any], torch.Tensor] | None = None,
        tolerance: float | None = None,
    ) -> Verification:
        """Run a step on one device and placed; name the first module whose output differs.

        Args:
            inputs: As example inputs are given.
            loss: From the model's output to a scalar; by default as for `place`.
            tolerance: Largest difference allowed, as a share of the largest value of a tensor.

        """
        given = loss or self.asked.loss
        there = batch_on(inputs, self._placement.accelerators)
        return verified(self.model, there, given, tolerance, self._paused)

    def _paused(self) -> Callable[[], None]:
        """Take the model back to one device; return what places it again."""
        device = self._devices[0]
        call_uncompiled(self.model)
        self._installed.remove()
        was = {name: t.device for name, t in named_tensors(self.model)}
        Homes(self.model, dict.fromkeys(was, device)).move()

        def again() -> None:
            Homes(self.model, was).move()
            self._install(self._placement.homes)

        return again

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the model."""
        return self.model.state_dict()

    @briefly
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load the state of the model."""
        self.model.load_state_dict(state)

    def optimizer_state_dict(self, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
        """Return the state of an optimizer of the model, by the names of its parameters.

        It has the form that `torch.distributed.checkpoint.state_dict` gives it.
        """
        return named_state.named_state(self.model, optimizer, lambda _: True)

    @briefly
    def load_optimizer_state_dict(
        self, optimizer: torch.optim.Optimizer, state: Mapping[str, Any]
    ) -> None:
        """Load the state of an optimizer by names, or one that `optimizer.state_dict()` gave."""
        named = named_state.checked_state(self.model, optimizer, state)
        named_state.load_named(self.model, optimizer, named, lambda _: True)

    @briefly
    def save(
        self, folder: str | os.PathLike[str], *, optimizer: torch.optim.Optimizer | None = None
    ) -> None:
        """Write a checkpoint by torch.distributed.checkpoint.

        Args:
            folder: One without a checkpoint.
            optimizer: Whose state is written, too.

        """
        path = Path(folder)
        kept = None if optimizer is None else self.optimizer_state_dict(optimizer)
        parts = checkpoint.to_write(path, self.model.state_dict(keep_vars=True), kept)
        checkpoint.write_beside(path, self.plan, 1, parts)
        checkpoint.write(path, {n: t.detach() for n, t in parts.tensors.items()}, kept, None)

    @briefly
    def load(self, source: Any, *, optimizer: torch.optim.Optimizer | None = None) -> None:
        """Load weights, whatever placement and number of processes they come from.

        All of them, or none where something is missing or of another shape.

        Args:
            source: A checkpoint's folder, a safetensors file or folder, or a state_dict.
            optimizer: Whose state is in that checkpoint, too.

        """
        found = sources.source_of(source)
        parts = Parts(self.model.state_dict(keep_vars=True))
        names = sources.matched(found, parts)
        values = found.read(dict.fromkeys(names.values()))
        kept = None
        if optimizer is not None:
            groups = named_state.group_names(self.model, optimizer)
            own = [name for group in groups for name in group]
            state = found.optimizer_state(own)
            kept = named_state.checked_state(self.model, optimizer, state)
        whole = {name: values[names[name]] for name in parts.whole}
        self.model.load_state_dict(whole, strict=not parts.parts)
        with torch.no_grad():
            for name, part in parts.parts.items():
                part.copy_(values[names[name]])
        if optimizer is not None and kept is not None:
            named_state.load_named(self.model, optimizer, kept, lambda _: True)

    def report(self, path: str | os.PathLike[str]) -> Path:
        """Write the plan as one HTML page."""
        return report(self.plan, path)

    @functools.cached_property
    def _alone(self) -> str:
        """What the step takes on one device, which may have to be planned."""
        return on_one_device(self.plan)

    def _summary(self) -> Summary:
        name = type(self.model).__name__
        said = summary(name, self.plan, self.runs_on, self.peaks, self._alone)
        if updates := self.planned.host_updates:
            said.below.append(updates)
        for why in dict.fromkeys(self.left_out):
            said.below.append(f"a part runs eagerly: {why}")
        if self.planned.step.is_training and not self.planned.held and self.asked.plan is None:
            said.below.append("gradients of a step have to be freed before the next forward")
        if not self._active:
            said.below.append("restored: it does not run so any more")
        return said

    def __str__(self) -> str:
        return str(self._summary())

    def _repr_html_(self) -> str:
        return self._summary().html()
