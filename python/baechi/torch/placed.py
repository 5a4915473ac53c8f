# SPDX-License-Identifier: Apache-2.0
"""A placed model: what it does, how it is verified, and how it becomes a plain one again."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from baechi._core import InputError, Plan
from baechi.brief_errors import briefly
from baechi.reports import report
from baechi.summary import Summary, on_one_device, summary
from baechi.torch.base.mini_batch import cut
from baechi.torch.record.capture import unchanged
from baechi.torch.run.assigner import NOT_RUN, Assigner
from baechi.torch.run.graphs import Graphs
from baechi.torch.run.host_time import waits_for_host
from baechi.torch.run.stepping import Stepper, StepPlan, check_scaler
from baechi.torch.run.ways import Choice
from baechi.torch.trace.exported import export
from baechi.torch.trace.graph import NotExportedError
from baechi.torch.trace.operators import OperatorWatcher
from baechi.torch.verification import (
    Trail,
    Verification,
    check_copies,
    compared,
    no_dropout,
    trail_of,
)
from baechi.torch.weights.checkpoint import check_can_be_written, write, write_beside
from baechi.torch.weights.named_state import (
    checked_state,
    group_names,
    load_named,
    named_state,
)
from baechi.torch.weights.sources import matched, source_of


class Placed:
    """A model that runs over several devices, until `restore`."""

    def __init__(
        self,
        model: nn.Module,
        assigner: Assigner,
        plan: Plan | None,
        why_tier_1: str = "tier 1 was asked for",
    ) -> None:
        self.model = model
        self.plan = plan
        self.tier_peaks: dict[int, dict[str, int]] = {}  # predicted, by tier
        self.gradients = "freed"  # or "held": what the peaks assume of them when a forward begins
        self.why_tier_1 = why_tier_1  # where no call may run in tier 2
        self.choice = Choice(assigner.full_mode, "it was asked for")  # of the mode
        self._assigner = assigner
        self._stepper: Stepper | None = None
        assigner.install()
        self._active = True

    def restore(self) -> nn.Module:
        """Undo everything: the model runs, and its weights are, where they were before."""
        if self._active:
            self._assigner.remove()
            self._active = False
        return self.model

    def __call__(self, *_: Any, **__: Any) -> None:
        """Raise TypeError: what is called is the model, as ever."""
        raise TypeError("call the model that was placed: model(inputs), or placed.model(inputs)")

    def take_steps(self, planned: StepPlan, example_inputs: Any) -> None:
        """Have `step` run what was planned for mini-batches such as the example."""
        self._stepper = Stepper(self._assigner, planned)
        try:
            self._stepper.program(cut(example_inputs, planned.micro_batches))
        except BaseException:
            self.restore()
            raise

    @briefly
    def step(self, inputs: Any, targets: Any = None, *, scaler: Any = None) -> torch.Tensor:
        """Run forward and backward of a mini-batch in the micro-batches that were planned.

        Gradients are added to those of the parameters: the mean over the micro-batches.

        Args:
            inputs: A mini-batch, as example inputs are given, and as many samples.
            targets: What the loss is called with behind the output, as `place` was given them.
            scaler: A `torch.amp.GradScaler`, whose scale the gradients get, as by
                `scaler.scale(loss).backward()`. The loss that is returned has none.

        Returns:
            The mean of the micro-batches' losses, without a gradient, where it was computed.

        """
        if self._stepper is None:
            raise InputError(
                "step runs micro-batches: place(..., micro_batches=4), or another number"
            )
        if not self._active:
            raise InputError("the model is not placed any more: restore() was called")
        return self._stepper.step(inputs, targets, scaler)

    def agree_on(self, scaler: Any) -> Any:
        """Return a GradScaler; over ranks it skips a step on all where one finds an infinity."""
        check_scaler(scaler)
        return scaler

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the model; over ranks that of all, on the host of every rank."""
        state: dict[str, Any] = self.model.state_dict()
        return state

    @briefly
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load the state of the model; over ranks each takes its own of what it is given."""
        self.model.load_state_dict(state)

    def optimizer_state_dict(self, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
        """Return the state of an optimizer of the model, by the names of its parameters.

        Over ranks that of all, on the host of every rank. It has the form that
        `torch.distributed.checkpoint.state_dict` gives it.
        """
        return named_state(self.model, optimizer, lambda _: True)

    @briefly
    def load_optimizer_state_dict(
        self, optimizer: torch.optim.Optimizer, state: Mapping[str, Any]
    ) -> None:
        """Load the state of an optimizer by names, or one that `optimizer.state_dict()` gave."""
        named = checked_state(self.model, optimizer, state)
        load_named(self.model, optimizer, named, lambda _: True)

    @briefly
    def save(
        self, folder: str | os.PathLike[str], *, optimizer: torch.optim.Optimizer | None = None
    ) -> None:
        """Write a checkpoint by torch.distributed.checkpoint; over ranks all call it.

        Args:
            folder: Without a checkpoint, one for each. Over several hosts all of them have it.
            optimizer: Whose state is written, too.

        """
        path, state = Path(folder), self.model.state_dict()
        check_can_be_written(path, state)
        kept = None if optimizer is None else self.optimizer_state_dict(optimizer)
        write_beside(path, self.plan, {"processes": 1})
        write(path, state, kept, None)

    @briefly
    def load(self, source: Any, *, optimizer: torch.optim.Optimizer | None = None) -> None:
        """Load weights, whatever placement and number of processes they come from.

        All of them, or none where something is missing or of another shape.

        Args:
            source: A checkpoint's folder, a safetensors file or folder, or a state_dict.
            optimizer: Whose state is in that checkpoint, too.

        """
        found = source_of(source)
        names = matched(found, self.model.state_dict(keep_vars=True))
        values = found.read(dict.fromkeys(names.values()))
        kept = None
        if optimizer is not None:
            own = [name for group in group_names(self.model, optimizer) for name in group]
            kept = checked_state(self.model, optimizer, found.optimizer_state(own))
        self.model.load_state_dict({name: values[there] for name, there in names.items()})
        if kept is not None:
            load_named(self.model, optimizer, kept, lambda _: True)

    def clip_grad_norm_(
        self, max_norm: float, norm_type: float = 2.0, *, error_if_nonfinite: bool = False
    ) -> torch.Tensor:
        """Clip the gradients of all weights by their norm, over ranks that of all; return it."""
        weights = self.model.parameters()
        return torch.nn.utils.clip_grad_norm_(weights, max_norm, norm_type, error_if_nonfinite)

    @briefly
    def verify(
        self,
        inputs: Any,
        *,
        loss: Callable[[Any], torch.Tensor] | None = None,
        tolerance: float | None = None,
    ) -> Verification:
        """Run a step on one device and placed; name the first operator that differs.

        Args:
            inputs: As example inputs are given.
            loss: From the model's output to a scalar; by default as for `place`.
            tolerance: Largest difference allowed, as a share of the largest value of a tensor.

        """
        mine = self._assigner
        copies = check_copies(mine.devices, mine.mode)
        if not copies:
            return copies
        was_active = self._active
        self.restore()
        try:
            return self._verified(inputs, loss, tolerance)
        finally:
            if was_active:
                mine.install()
                self._active = True

    def _verified(self, inputs: Any, loss: Any, tolerance: float | None) -> Verification:
        mine = self._assigner
        units = mine.captured.units
        expected = trail_of(self.model, lambda path, _: path in units, inputs, loss)
        found = Trail()
        fine = Assigner(
            self.model,
            mine.captured,
            mine.placement,
            mine.devices,
            mine.mode,
            collapse=False,
            watch=found.watch,
        )
        with unchanged(self.model, mine.places, inputs), no_dropout(self.model):
            fine.install()
            try:
                found.run(self.model, inputs, loss)
            finally:
                fine.remove()
        result = compared(expected, found, tolerance)
        if result and mine.graphs is not None:
            graph = self._verified_graph(mine.graphs, inputs, loss, tolerance)
            result = result if graph is None else graph
        return result

    def _verified_graph(
        self, graphs: Graphs, inputs: Any, loss: Any, tolerance: float | None
    ) -> Verification | None:
        """Compare the exported graph on one device and placed; None where there is none."""
        mine = self._assigner
        with no_dropout(self.model):
            try:
                graphs.announce_tracing("is verified as a graph, too")
                graph = export(self.model, inputs, units=graphs.tier2.units)
            except NotExportedError:
                return None
            expected, found = Trail(), Trail()
            sides = (
                (OperatorWatcher(self.model, graph, expected.watch), expected),
                (mine.watched(graph, found.watch), found),
            )
            for runner, trail in sides:
                with unchanged(self.model, mine.places, inputs):
                    runner.install()
                    try:
                        trail.run(self.model, inputs, loss)
                    finally:
                        runner.remove()
        return compared(expected, found, tolerance)

    @property
    def rank(self) -> int:
        """Which process this is, of those that the model is placed over; 0 where it is alone."""
        return 0

    @property
    def replica(self) -> int:
        """Which copy of the placement this process is of; 0 where there is one."""
        return 0

    @property
    def replicas(self) -> int:
        """How many copies of the placement train together."""
        return 1

    def share(self, batch: Any) -> Any:
        """Return this copy's part of what all copies of the placement are to train on."""
        return batch

    @property
    def weight_devices(self) -> dict[str, str]:
        """The cluster's device of every parameter and buffer, by name."""
        return self._assigner.weight_devices

    @property
    def tier(self) -> int:
        """Which tier ran the last call: 2 the exported graph, 1 the model's own code."""
        return self._assigner.tier

    @property
    def mode(self) -> str:
        """How operators and transfers are ordered: "plain", "streams" or "streams+order"."""
        return self.choice.mode

    @property
    def peaks(self) -> dict[str, int]:
        """The most bytes that each device is predicted to hold in a step like the example's.

        Of the tier that ran the last call; before the first call, of the tier that needs more. Of
        the other tier where the example does not run in this one.
        """
        known = list(self.tier_peaks.values())
        ran = self._assigner.graphs is None or self._assigner.note != NOT_RUN
        if ran and self.tier in self.tier_peaks:
            known = [self.tier_peaks[self.tier]]
        return {d: max(peaks[d] for peaks in known) for peaks in known[:1] for d in peaks}

    @property
    def tier_note(self) -> str:
        """Why the last call did not run in tier 2, or what that would gain; empty when it did."""
        return self.why_tier_1 if self._assigner.graphs is None else self._assigner.note

    @property
    def graphs(self) -> int:
        """How many graphs of the model there are for tier 2: one per mode and kind of arguments."""
        return 0 if self._assigner.graphs is None else len(self._assigner.graphs)

    @property
    def unplanned(self) -> set[str]:
        """The modules and functions that ran but were not in the recorded step."""
        return set(self._assigner.eager.unplanned)

    @property
    def transfers(self) -> int:
        """How many tensors were sent so far."""
        return self._assigner.sent.links.transfers

    @property
    def runs_on(self) -> dict[str, str]:
        """The physical device of each device of the cluster."""
        return {device.name: str(device.torch_device) for device in self._assigner.devices}

    @functools.cached_property
    def _alone(self) -> str:
        """What the step takes on one device, which may have to be planned."""
        return "" if self.plan is None else on_one_device(self.plan)

    def _summary(self) -> Summary:
        peaks = self.peaks if self.tier_peaks else {}
        name = type(self.model).__name__
        said = summary(name, self.plan, self.runs_on, peaks, self._alone)
        if self._stepper is not None:
            count = self._stepper.micro_batches
            of = f"{count} micro-batches" if count > 1 else "the mini-batch"
            what = "a call runs it" if self._stepper.is_of_calls else f"`step` runs {of}"
            said.below.append(f"{what} in the order of the plan")
            waits = waits_for_host(self._stepper.planned)
            said.below += [waits] if waits else []
        else:
            note = f": {self.tier_note}" if self.tier_note else ""
            tier = f", tier {self.tier}{note}"
            if self.tier_note == NOT_RUN:
                tier = "; no call has run yet, and those that have a graph take tier 2"
            said.below.append(f"mode {self.mode!r}{tier}")
            if self.choice.ways:
                said.below.append(str(self.choice))
        if self.plan is not None and self.plan.recomputed:
            many = len(self.plan.recomputed)
            what = "1 operator runs" if many == 1 else f"{many} operators run"
            said.below.append(f"{what} again in the backward")
        if self.gradients == "held":
            said.below.append("with room for gradients that are held while a forward runs")
        return said

    def __str__(self) -> str:
        return str(self._summary())

    def _repr_html_(self) -> str:
        return self._summary().html()

    @briefly
    def report(self, path: str | os.PathLike[str]) -> Path:
        """Show the plan as one HTML page, as `baechi.report` does; return the path."""
        if self.plan is None:
            raise InputError(
                "this model was placed without a plan: place(..., plan=plan) says what to report"
            )
        return report(self.plan, path)

    def __repr__(self) -> str:
        name, count = type(self.model).__name__, len(self._assigner.devices)
        return f"<Placed {name} on {count} devices, mode {self.mode!r}, tier {self.tier}>"
