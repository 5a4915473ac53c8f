# SPDX-License-Identifier: Apache-2.0
"""One model of the bank through all its trials, in a process of its own.

``python -m experiments.bank_row NAME [SEED] [compile]`` writes one line of JSON per trial as soon
as it has ended, so that a crash or a hang is that of the trial after the last line.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import math
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from baechi.torch.capture.loss import call_arguments
from baechi.torch.run.mini_batch import parts_of, samples_in
from baechi.torch.where import drawn
from baechi.torch.where.homes import plain_parts
from baechi.torch.where.moving import map_tensors

import baechi
from models.bank import ENTRIES
from models.bank.entry import Entry, noise

ROOM = 1 << 30
SHARES = (0.6, 0.8)  # of what one device needs, for a plan
SHORT = 1e-5  # the distance between losses by which a gradient is measured
STRAIGHT = 1e-3  # a difference allowed between the two: a ramp may bend there
CLOSE = 1e-6  # a difference allowed, as a share of the largest value of a tensor or of one


@dataclass(frozen=True)
class Trial:
    """A way to place a model, and the devices to place it on."""

    name: str
    devices: int = 3
    planned: bool = False  # else at random
    micro_batches: int | None = None  # of steps; None: calls
    eager: bool = False  # by the hooks alone
    regions: bool = False  # which Inductor compiles, on the CPU
    asynchronous: bool = True  # with poison and delays; else peaks are measured
    inputs_on: int | None = None  # a device; None: the host
    recompute: str = "auto"


TRIALS = (
    Trial("one device", 1, asynchronous=False),
    Trial("planned", 2, planned=True, asynchronous=False),
    Trial("random", inputs_on=0),
    Trial("random, inputs on the host"),
    Trial("random, eagerly", eager=True, inputs_on=1),
    Trial("steps, planned", 2, planned=True, micro_batches=2),
    Trial("steps, random", micro_batches=2, inputs_on=0),
)
CHANCE = (
    Trial("one device", 1, asynchronous=False, inputs_on=0),
    Trial("planned", 2, planned=True, asynchronous=False, inputs_on=0),
    Trial("random", inputs_on=0),
    Trial("random, eagerly", eager=True, inputs_on=0),
    Trial("random, run again", inputs_on=0, recompute="all"),
    Trial("steps, random", micro_batches=2, inputs_on=0),
)
COMPILED = (
    Trial("regions, one device", 1, regions=True),
    Trial("regions, random", 2, regions=True),
    Trial("regions, steps", 2, regions=True, micro_batches=2),
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
        self.precision = torch.float if entry.single else torch.double
        self.batches = [
            map_tensors(
                lambda t: t.to(self.precision) if t.is_floating_point() else t,
                entry.inputs(size, seed),
            )
            for size, seed in zip(entry.sizes, (1, 2, 1), strict=True)
        ]
        importlib.import_module("baechi.torch.sim")  # which is too late behind a backward
        self.truth: dict[int | None, Trained] = {None: self.unplaced()}
        self.need = 0  # bytes, on one device

    def device(self, number: int) -> str:
        """Name a device."""
        return f"sim:{number}"

    def devices(self, trial: Trial) -> list[str]:
        """Name the devices of a trial."""
        return ["cpu" if trial.regions else self.device(i) for i in range(trial.devices)]

    def machine(self, trial: Trial, seed: int, memory: int) -> Any:
        """Return a context in which the devices are those of a trial."""
        from baechi.torch import sim

        if self.entry.needs == "bitsandbytes":  # whose kernels for any device give other numbers
            sim.use_cpu_kernels(self.entry.needs)
        how: dict[str, Any] = {"asynchronous": trial.asynchronous, "poison": trial.asynchronous}
        if trial.asynchronous:
            how |= {"longest_delay": "150us", "seed": seed, "link": sim.Link("50us", "2GB/s")}
        return sim.configured(devices=4, memory=memory, **how)

    def built(self) -> Any:
        """Return the model before its first step."""
        torch.manual_seed(7)
        return self.entry.build().to(self.precision).train()

    def unplaced(self) -> Trained:
        """Train on one device."""
        return self.trained(self.built(), self.batches, None)

    def trained(
        self, model: Any, batches: list[Any], step: Callable[[Any], torch.Tensor] | None
    ) -> Trained:
        """Train, by a step of a batch if there is one."""
        torch.manual_seed(11)
        if self.entry.train is not None and step is None:
            losses = self.entry.train(model, batches, lambda: None)
        else:
            losses = self._adamw(model, batches, step)
        found = {f"weight {n}": p for n, p in model.named_parameters()}
        found |= {f"buffer {n}": b for n, b in model.named_buffers()}
        grads = {f"gradient of {n}": p.grad for n, p in model.named_parameters()}
        found |= {name: grad for name, grad in grads.items() if grad is not None}
        parts = {
            f"{name}, part {i}" if i else name: part.detach().to("cpu", copy=True)
            for name, tensor in found.items()
            for i, part in enumerate(plain_parts(tensor))
        }
        return Trained(losses, parts)

    def _adamw(self, model: Any, batches: list[Any], step: Any) -> list[float]:
        optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
        losses = []
        for batch in batches:
            optimizer.zero_grad()
            loss = self.back(model, batch, step)
            optimizer.step()
            losses.append(loss.item())
        return losses

    def back(self, model: Any, batch: Any, step: Any) -> torch.Tensor:
        """Run a batch forward and backward, by a step if there is one; return its loss."""
        if step is not None:
            done: torch.Tensor = step(batch)
            return done
        args, kwargs = call_arguments(batch)
        loss = self.entry.loss(model(*args, **kwargs))
        loss.backward()
        return loss

    def truth_in_parts(self, parts: int) -> Trained:
        """Train unplaced on the parts of each batch, one behind the other."""
        model = self.built()

        def step(batch: Any) -> torch.Tensor:
            count, losses = samples_in(batch, "inputs"), []
            for part, size in parts_of((batch, None), count, self.part_size(parts)):
                args, kwargs = call_arguments(part[0])
                loss = self.entry.loss(model(*args, **kwargs)) * (size / count)
                loss.backward()
                losses.append(loss.detach())
            return torch.stack(losses).sum()

        return self.trained(model, self.batches, step)

    def part_size(self, parts: int) -> int:
        """Return the samples of a part, for which a step is planned."""
        return samples_in(self.batches[0], "inputs") // parts

    def run(self, trial: Trial, number: int) -> dict[str, Any]:
        """Place, train, compare; of plans within some of the memory of one device."""
        parts = trial.micro_batches
        if parts is not None:
            try:
                samples = samples_in(self.batches[0], "inputs")
            except baechi.InputError as error:
                return {"result": "no parts", "said": first_line(error)}
            if samples % parts or self.entry.train is not None:
                return {"result": "no parts", "said": f"{samples} samples"}
            if parts not in self.truth:
                try:
                    self.truth[parts] = self.truth_in_parts(parts)
                except ValueError as error:  # the model's own: of a part of one sample, say
                    return {"result": "no parts", "said": f"on one device: {first_line(error)}"}
            if not are_finite(self.truth[parts].losses):
                return {"result": "no parts", "said": "on one device its losses are not finite"}
        shares = SHARES if trial.planned and self.need and parts is None else (None,)
        for share in shares:
            try:
                found = self._run(trial, self.seed * 100 + number, share)
            except baechi.DoesNotFit as error:
                found = {"result": "no plan", "said": first_line(error)}
            else:
                break
        return found if found["result"] == "no plan" else {**found, "share": share}

    def _run(self, trial: Trial, seed: int, share: float | None) -> dict[str, Any]:
        capacity = ROOM if share is None else int(self.need * share)
        how: dict[str, Any] = {"method": "random", "seed": seed}
        if trial.planned:
            how = {"budget": "200ms"}
        how["recompute"] = trial.recompute
        from baechi.torch import sim

        torch._dynamo.reset()
        with self.machine(trial, seed, ROOM), contextlib.ExitStack() as stack:
            placed = baechi.torch.place(
                self.built(),
                self.batches[0],
                f"{trial.devices}x{capacity}B",
                devices=self.devices(trial),
                loss=self.entry.loss,
                micro_batches=trial.micro_batches,
                optimizer="adamw",
                bounds=False,
                compile=trial.regions,
                **how,
            )
            on_host = trial.inputs_on is None and self.entry.train is None  # a script's are with it
            home = "cpu" if on_host else self.device(trial.inputs_on or 0)
            batches = [map_tensors(lambda t: t.to(home), batch) for batch in self.batches]
            for i in range(trial.devices):
                sim.reset_peak_memory_stats(i)  # of the trial before
            if trial.eager:
                stack.enter_context(torch.compiler.set_stance("force_eager"))
            found = self.trained(
                placed.model, batches, placed.step if trial.micro_batches else None
            )
            result: dict[str, Any] = {"result": "ok", "note": "; ".join(placed.left_out)[:200]}
            if trial.regions and " and " not in placed.program:
                result = {"result": "FAILS", "said": "nothing was compiled"}
            if not trial.asynchronous:
                result |= self.peaks(trial, placed)
            if said := self.wrong(trial, placed, batches, found):
                result |= {"result": "WRONG", "said": said}
            placed.restore()
        return result

    def wrong(self, trial: Trial, placed: Any, batches: list[Any], found: Trained) -> str:  # noqa: ARG002
        """Say what is wrong about what a placed model was trained to."""
        close = 20 * CLOSE if self.entry.single else CLOSE
        return difference(self.truth[trial.micro_batches], found, close)

    def peaks(self, trial: Trial, placed: Any) -> dict[str, Any]:
        """Return how far the predicted peaks are off, as a share of those that were measured."""
        from baechi.torch import sim

        torch.accelerator.synchronize()
        measured = [sim.max_memory_allocated(i) for i in range(trial.devices)]
        predicted = list(placed.peaks.values())
        self.need = self.need or max(predicted)
        pairs = zip(predicted, measured, strict=True)
        off = [p / m - 1 for p, m in pairs if m > 2048]
        return {"peaks": [min(off, default=0.0), max(off, default=0.0)]}


def are_finite(losses: list[float]) -> bool:
    """Tell whether there are numbers to compare."""
    return all(map(math.isfinite, losses))


def difference(expected: Trained, found: Trained, close: float = CLOSE) -> str:
    """Name the first loss, weight, buffer or gradient that differs; "" when none does."""
    for step, (a, b) in enumerate(zip(expected.losses, found.losses, strict=True), 1):
        if not abs(a - b) <= close * max(1.0, abs(a)):
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
        if not off <= close:
            return f"{name} is off by {off:.2g}"
    return ""


def first_line(error: BaseException) -> str:
    """Return the line that the user sees."""
    text = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {text[0]}"


def trials(subject: Subject) -> Iterator[dict[str, Any]]:
    """Yield what became of each trial."""
    if not are_finite(subject.truth[None].losses):
        raise ValueError(f"on one device its losses are {subject.truth[None].losses}")
    for number, trial in enumerate(subject.trials):
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


class Chance(Subject):
    """A model of the bank whose forward draws random numbers.

    The same seed gives the same again, and that of one device where one device draws all; and the
    backward is that of what the forward has drawn: the loss changes along a line as its gradient
    says.
    """

    trials = CHANCE

    def unplaced(self) -> Trained:
        """Train on a device whose generator those that are placed have, too."""
        with self.machine(CHANCE[0], 0, ROOM):
            batches = [map_tensors(lambda t: t.to("sim:0"), batch) for batch in self.batches]
            return self.trained(self.built().to("sim:0"), batches, None)

    def truth_in_parts(self, parts: int) -> Trained:  # noqa: ARG002
        """Train in one part: parts draw in an order of their own."""
        return self.truth[None]

    def wrong(self, trial: Trial, placed: Any, batches: list[Any], found: Trained) -> str:
        """Say what is wrong about what a placed model was trained to."""
        step = placed.step if trial.micro_batches else None
        states = [drawn.state_of(torch.device("sim", i)) for i in range(trial.devices)]
        one_draws = sum(bool(state[8:].any()) for state in states) == 1
        if one_draws and step is None and (said := difference(self.truth[None], found)):
            return said
        placed.model.load_state_dict(self.built().state_dict())
        if said := difference(found, self.trained(placed.model, batches, step)):
            return f"the same seed: {said}"
        return self.slope(placed.model, batches[0], step)

    def slope(self, model: Any, batch: Any, step: Any) -> str:
        """Compare the gradient along a line with how the loss changes on it."""
        weights = [p for p in model.parameters() if p.requires_grad]
        line = [noise(*p.shape, seed=3).to(p) for p in weights]

        def loss_at(length: float) -> float:
            with torch.no_grad():
                for weight, ahead in zip(weights, line, strict=True):
                    weight.add_(ahead, alpha=length)
            model.zero_grad()
            torch.manual_seed(5)
            return float(self.back(model, batch, step).detach())

        loss_at(0.0)
        gradients = [torch.zeros_like(p) if p.grad is None else p.grad.clone() for p in weights]
        foreseen = sum(float((g * a).sum()) for g, a in zip(gradients, line, strict=True))
        measured = (loss_at(SHORT) - loss_at(-2 * SHORT)) / (2 * SHORT)
        if abs(measured - foreseen) <= STRAIGHT * max(1.0, abs(foreseen)):
            return ""
        return f"along a line the loss changes by {measured:.6g}, its gradient is {foreseen:.6g}"


class Compiled(Subject):
    """A model of the bank whose regions Inductor compiles."""

    trials = COMPILED


if __name__ == "__main__":
    chosen = Chance if ENTRIES[sys.argv[1]].chance else Subject
    main(Compiled if "compile" in sys.argv else chosen, sys.argv[1], *map(int, sys.argv[2:3]))
