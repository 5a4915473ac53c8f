# SPDX-License-Identifier: Apache-2.0
"""One model of the bank through all its trials, in a process of its own.

``python -m experiments.bank_row NAME [SEED]`` writes one line of JSON per trial as soon as it has
ended, so that a crash or a hang is that of the trial after the last line.
"""

from __future__ import annotations

import gc
import importlib
import json
import sys
import time
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from baechi.torch.base.nested import map_tensors
from baechi.torch.memory.beside import room_for_later
from baechi.torch.placing import place_with
from baechi.torch.record.capture import call_arguments
from baechi.torch.trace.exported import export
from baechi.torch.trace.graph import NotExportedError
from baechi.torch.weights.homes import homes_by_name

import baechi
from models.bank import ENTRIES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from models.bank.entry import Entry

ROOM = 1 << 30
MORE = 0.8  # of what one device needs, where less is not enough
CLOSE = 1e-6  # a difference allowed, as a share of the largest value of a tensor or of one
HIGH, LOW, BYTES = 1.10, 0.97, 2048  # what a predicted peak may be of a measured one, and beyond


@dataclass(frozen=True)
class Trial:
    """A way to place a model, and the devices to place it on."""

    name: str
    devices: int
    tier: str | int = "auto"
    mode: str = "streams"
    share: float | None = None  # of what one device needs; None: enough
    method: str = "random"
    asynchronous: bool = False  # with poison and delays; else peaks are measured
    inputs_on: str = "cpu"
    shared: bool = False  # all devices are logical ones of one accelerator


TRIALS = (
    Trial("one device", 1, method="single"),
    Trial("planned, 60%", 2, share=0.6, method="auto"),
    Trial("planned, 40%, tier 1", 4, 1, share=0.4, method="auto"),
    Trial("random, tier 1", 3, 1),
    Trial("random, tier 2, ordered", 3, 2, "streams+order"),
    Trial("asynchronous, tier 1, plain", 3, 1, "plain", asynchronous=True),
    Trial("asynchronous, tier 1, streams", 4, 1, asynchronous=True, inputs_on="sim:0"),
    Trial("asynchronous, tier 1, one accelerator", 3, 1, asynchronous=True, shared=True),
    Trial("asynchronous, tier 2, plain", 3, 2, "plain", asynchronous=True, inputs_on="sim:0"),
    Trial("asynchronous, tier 2, streams", 4, 2, asynchronous=True),
    Trial("asynchronous, tier 2, ordered", 3, 2, "streams+order", asynchronous=True),
)


@dataclass(frozen=True)
class Trained:
    """What training leaves: the losses, and every weight, buffer and last gradient by name."""

    losses: list[float]
    tensors: dict[str, torch.Tensor]


class Subject:
    """A model of the bank: its batches, and what training on one device makes of it."""

    trials: tuple[Trial, ...] = TRIALS

    def __init__(self, entry: Entry, seed: int) -> None:
        self.entry = entry
        self.seed = seed
        self.batches = [
            map_tensors(
                lambda t: t.double() if t.is_floating_point() else t, entry.inputs(size, seed)
            )
            for size, seed in zip(entry.sizes, (1, 2, 1), strict=True)
        ]
        self.train = entry.train or self._adamw
        self.truth = self.trained_alone()
        self.known: list[Any] = []  # its graph, made once for all trials
        self.need = 0  # bytes, on one device

    def trained_alone(self) -> Trained:
        """Train on one device, unplaced."""
        importlib.import_module("baechi.torch.sim")  # which is too late behind a backward
        return self.trained(self.built(), self.batches)

    def devices(self, trial: Trial) -> list[str]:
        """Name the devices of a trial."""
        return [f"sim:{0 if trial.shared else i}" for i in range(trial.devices)]

    def built(self) -> Any:
        """Return the model before its first step."""
        torch.manual_seed(7)
        return self.entry.build().double().train()

    def _adamw(
        self, model: Any, batches: list[Any], before: Callable[[], None], rate: float = 1e-3
    ) -> list[float]:
        optimizer = torch.optim.AdamW(model.parameters(), rate)
        losses = []
        for batch in batches:
            optimizer.zero_grad()
            before()
            args, kwargs = call_arguments(batch)
            loss = self.entry.loss(model(*args, **kwargs))
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        return losses

    def trained(
        self,
        model: Any,
        batches: list[Any],
        before: Callable[[], None] = lambda: None,
        after: Callable[[], object] = lambda: None,
    ) -> Trained:
        """Train; `after` is called before weights are read."""
        torch.manual_seed(11)
        losses = self.train(model, batches, before)
        after()
        found = {f"weight {n}": p for n, p in model.named_parameters()}
        found |= {f"buffer {n}": b for n, b in model.named_buffers()}
        grads = {f"gradient of {n}": p.grad for n, p in model.named_parameters()}
        found |= {name: grad for name, grad in grads.items() if grad is not None}
        return Trained(losses, {n: t.detach().to("cpu", copy=True) for n, t in found.items()})

    def run_example(self, model: Any, batches: list[Any], before: Callable[[], None]) -> None:
        """Train two steps that leave the weights as they are: the second is the recorded one."""
        self._adamw(model, [batches[0]] * 2, before, rate=0.0)
        model.zero_grad()

    def why_no_graph(self) -> str:
        """Make the graph for all trials; the reason when there is none."""
        try:
            self.known = [export(self.built(), self.batches[0])]
        except NotExportedError as why:
            return str(why)
        return ""

    def run(self, trial: Trial, number: int) -> dict[str, Any]:
        """Place, train, compare; with more memory where no plan fits."""
        try:
            return self._run(trial, number, trial.share)
        except baechi.DoesNotFit as error:
            if trial.share is None:
                raise
            try:
                return self._run(trial, number, MORE) | {"share": MORE}
            except baechi.DoesNotFit:
                return {"result": "no plan", "said": first_line(error)}

    def _run(self, trial: Trial, number: int, share: float | None) -> dict[str, Any]:
        from baechi.torch import sim

        capacity = ROOM if share is None else int(self.need * share)
        seed = self.seed * 100 + number
        how: dict[str, Any] = {"asynchronous": trial.asynchronous, "poison": trial.asynchronous}
        if trial.asynchronous:
            how |= {"longest_delay": "150us", "seed": seed, "link": sim.Link("50us", "2GB/s")}
        # Where the data decides what a step needs, another one may need more than the example.
        memory = ROOM if self.entry.varies else capacity
        with sim.configured(devices=4, memory=memory, **how):
            return self._run_on(trial, seed, capacity)

    def _placed(self, trial: Trial, seed: int, capacity: int, batches: list[Any]) -> Any:
        """Place the model before its first step."""
        drawn: dict[str, Any] = {"seed": seed} if trial.method == "random" else {}
        return place_with(
            self.known,
            self.built(),
            batches[0],
            cluster=f"{trial.devices}x{capacity * 97 // 100}B",
            devices=self.devices(trial),
            loss=self.entry.loss,
            method=trial.method,
            optimizer="adamw",
            gradients="freed",  # these scripts give them up before a forward
            mode=trial.mode,
            tier=trial.tier,
            budget="200ms",
            bounds=False,
            **drawn,
        )

    def _run_on(self, trial: Trial, seed: int, capacity: int) -> dict[str, Any]:
        from baechi.torch import sim

        batches = [map_tensors(lambda t: t.to(trial.inputs_on), batch) for batch in self.batches]
        devices = range(trial.devices)
        measured: list[int] = []

        def before() -> None:
            for device in devices:
                sim.reset_peak_memory_stats(device)

        def measure() -> None:
            torch.accelerator.synchronize()
            measured[:] = [sim.max_memory_allocated(i) for i in devices]

        def after() -> None:
            if not (peaks and self.entry.varies):
                measure()
            result.update(tier=placed.tier, note=placed.tier_note, predicted=placed.peaks)
            placed.restore()

        result: dict[str, Any] = {"result": "ok"}
        peaks = not trial.asynchronous and self.entry.train is None
        if peaks and self.entry.varies:  # a model of its own: it may keep what it has seen
            example = self._placed(trial, seed, capacity, batches)
            self.run_example(example.model, batches, before)
            measure()
            example.restore()
        placed = self._placed(trial, seed, capacity, batches)
        self.need = self.need or max(placed.peaks.values())
        found = self.trained(placed.model, batches, before, after)
        if peaks:
            room = unused_room(placed)
            predicted = [peak - room.get(d, 0) for d, peak in result["predicted"].items()]
            result |= compared_peaks(predicted, measured)
        if said := difference(self.truth, found):
            result |= {"result": "WRONG", "said": said}
        return result


def unused_room(placed: Any) -> dict[str, int]:
    """Return what a plan leaves for the optimizer's state of weights that have no gradient here."""
    captured = placed._assigner.captured
    return room_for_later(captured, homes_by_name(captured, placed.plan.device_of), "adamw")


def compared_peaks(predicted: list[int], measured: list[int]) -> dict[str, Any]:
    """How far the predicted peaks are off, in bytes as a share of what was measured."""
    off = [p / max(m, 1) - 1 for p, m in zip(predicted, measured, strict=True) if m > BYTES]
    result: dict[str, Any] = {"peaks": [min(off, default=0.0), max(off, default=0.0)]}
    for device, (p, m) in enumerate(zip(predicted, measured, strict=True)):
        if not LOW * m - BYTES / 4 <= p <= HIGH * m + BYTES:
            found = f"only {m}" if m < p else str(m)
            said = f"{p} bytes were predicted for device {device}, {found} measured"
            result |= {"result": "PEAK", "said": said}
    return result


def difference(expected: Trained, found: Trained) -> str:
    """Name the first loss, weight, buffer or gradient that differs; "" when none does."""
    for step, (a, b) in enumerate(zip(expected.losses, found.losses, strict=True), 1):
        if not abs(a - b) <= CLOSE * max(1.0, abs(a)):
            return f"loss {b:.10g} instead of {a:.10g} in step {step}"
    if expected.tensors.keys() != found.tensors.keys():
        names = sorted(expected.tensors.keys() ^ found.tensors.keys())
        return f"{names[0]} is only there {'placed' if names[0] in found.tensors else 'unplaced'}"
    for name, a in expected.tensors.items():
        b = found.tensors[name]
        if a.shape != b.shape or a.dtype != b.dtype:
            return f"{name} is {b.dtype} {list(b.shape)} instead of {a.dtype} {list(a.shape)}"
        if a.dtype.is_floating_point or a.dtype.is_complex:
            scale = max(1.0, float(a.abs().max())) if a.numel() else 1.0
            off = float((a - b).abs().max()) / scale if a.numel() else 0.0
        else:
            off = float((a != b).sum())
        if not off <= CLOSE:
            return f"{name} is off by {off:.2g}"
    return ""


def first_line(error: BaseException) -> str:
    """Return the line that the user sees."""
    text = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {text[0]}"


def trials(subject: Subject) -> Iterator[dict[str, Any]]:
    """Yield what became of each trial."""
    if not all(map(torch.isfinite, map(torch.tensor, subject.truth.losses))):
        raise ValueError(f"on one device its losses are {subject.truth.losses}")
    why = subject.why_no_graph()
    yield {"trial": "graph", "result": "none" if why else "ok", "said": why}
    for number, trial in enumerate(subject.trials):
        if (why and trial.tier == 2) or (trial.share and not subject.need):
            continue  # there is no graph, or one device did not run it
        try:
            found = subject.run(trial, number)
        except Exception as error:
            found = {"result": "FAILS", "said": first_line(error)}
        gc.collect()
        yield {"trial": trial.name, **found}


def main(kind: type[Subject], name: str, seed: int = 1) -> None:
    """Run the trials of one model."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    start = time.process_time()
    for found in trials(kind(ENTRIES[name], seed)):
        seconds, start = time.process_time() - start, time.process_time()
        print(json.dumps({**found, "seconds": round(seconds, 2)}), flush=True)


if __name__ == "__main__":
    main(Subject, sys.argv[1], *map(int, sys.argv[2:3]))
