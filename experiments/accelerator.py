# SPDX-License-Identifier: Apache-2.0
"""All that needs a real accelerator, as one page: costs, links, steps and peaks measured on it.

The page grows: what a run did not reach (`--minutes`) keeps the rows of an earlier run on the same
accelerator, so that a machine that is lent for minutes at a time is enough.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from experiments import (
    accelerator_host,
    accelerator_links,
    accelerator_tables,
)
from experiments import accelerator_planned as planned
from experiments.accelerator_links import Links
from experiments.accelerator_models import one_device_row, spread_rows
from experiments.accelerator_results import NOT_REACHED, Results, earlier, same_hardware
from experiments.accelerator_steps import attempt, subject_of
from experiments.catalogue import PARTS
from experiments.hardware import Hardware, hardware
from experiments.page import RESULTS, Page
from experiments.profile_models import FOLDER, add_to_list, listed, load, write
from models.pytorch import MODELS

NAME = "accelerator"
# Of the time, after which a part begins nothing new.
FRACTION = {"host": 0.25, "models": 0.8, "planned": 0.95}
FIRST_TABLE = {"planned": "table4"}  # of a part, where it is not called as the part


@dataclass
class Clock:
    """When the run has to be over."""

    seconds: float | None
    start: float = field(default_factory=time.monotonic)

    def over(self, part: str) -> bool:
        """Tell whether a part may begin something new."""
        if self.seconds is None:
            return False
        return time.monotonic() - self.start > FRACTION.get(part, 1.0) * self.seconds


@dataclass
class Experiment:
    """One run."""

    hardware: Hardware
    results: Results
    clock: Clock
    profiles: Path
    save: Callable[[], None] = lambda: None  # what there is so far: the run may be cut short

    def run(self, parts: Iterable[str], names: Iterable[str]) -> None:
        """Fill in the results."""
        links = self._links("links" in parts)
        if links is None:
            for part in FRACTION:
                if part in parts:
                    self._fail(FIRST_TABLE.get(part, part), "-", "all", "there are no links")
            return
        if "host" in parts:
            self._host(links)
        if "models" in parts:
            self._models(links, names)
        if "planned" in parts:
            self._planned(links, names)
        if late := [name for name in names if name in self.results.unreached("models")]:
            rest = f"--parts models,planned --models {','.join(late)}"
            print(f"    {rest} goes on where the time was over", file=sys.stderr, flush=True)

    def _fail(self, table: str, workload: str, what: str, why: str) -> None:
        self.results.failed[table].append({"workload": workload, "what": what, "why": why})

    def _late(self, part: str, name: str) -> bool:
        late = self.clock.over(part)
        if late:
            self._fail(FIRST_TABLE.get(part, part), name, part, NOT_REACHED)
        else:
            print(f"    {part}: {name}", file=sys.stderr, flush=True)
        return late

    def _links(self, wanted: bool) -> Links | None:
        quick = {"largest": 1 << 20, "repeats": 3} if self.hardware.clock else {}
        found: Links | None = attempt(
            {},
            "links",
            lambda: accelerator_links.calibrated(self.hardware, **quick),
            self.results.failed["links"],
        )
        for row in accelerator_links.rows(found) if found is not None and wanted else ():
            self.results.update("links", row)
        self.save()
        return found

    def _host(self, links: Links) -> None:
        for workload in accelerator_host.workloads(self.hardware):
            if self._late("host", f"{workload.name} with the CPU"):
                continue
            row = attempt(
                {"workload": workload.name},
                "accelerator and CPU",
                partial(accelerator_host.row, workload, self.hardware, links),
                self.results.failed["host"],
            )
            if row is not None:
                self.results.update("host", row)
            self.save()

    def _models(self, links: Links, names: Iterable[str]) -> None:
        for name in names:
            if not self._late("models", name):
                call = partial(self._of_model, name, links)
                attempt({"workload": name}, "its steps", call, self.results.failed["models"])
                self.save()

    def _of_model(self, name: str, links: Links) -> None:
        subject = subject_of(name, self.hardware)
        self._keep_costs(name, subject)
        row = one_device_row(subject, self.results.failed["models"])
        self.results.update("models", row)
        for spread in spread_rows(subject, row, links, self.results.failed["spread"]):
            self.results.update("spread", spread)

    def _keep_costs(self, name: str, subject: Any) -> None:
        self.profiles.mkdir(parents=True, exist_ok=True)
        graph = subject.graph
        write(self.profiles, name, graph)
        known = {
            "operators": len(graph),
            "sizes": subject.workload.sizes(),
            "costs": "measured on an accelerator",
            "memory": self.hardware.total_memory(self.hardware.devices[0]),
            **self.results.hardware,
        }
        add_to_list(self.profiles, {name: known})

    def _planned(self, links: Links, names: Iterable[str]) -> None:
        line = accelerator_links.words(links.through_host())
        profiles = listed(self.profiles)
        unreached = self.results.unreached("models")
        for name in names:
            known = profiles.get(name)
            # Another accelerator's profile says nothing of this one.
            if known is None or not same_hardware(known, self.results.hardware):
                why = "no costs measured on this accelerator: run the part `models` first"
                self._fail("table4", name, "planned", NOT_REACHED if name in unreached else why)
            elif not self._late("planned", name):
                self._plan(name, known, line)

    def _plan(self, name: str, known: dict[str, Any], line: str) -> None:
        where, failed = {"workload": name}, self.results.failed
        costed = attempt(where, "costs", partial(load, name, self.profiles), failed["table4"])
        if costed is None:
            return
        workload = planned.workload(name, costed, known, line)
        row = attempt(where, "Table 4", partial(planned.row, workload), failed["table4"])
        if row is not None:
            self.results.update("table4", row)
        tight = attempt(where, "Table 5", partial(planned.tight_rows, workload), failed["table5"])
        for row in tight or ():
            self.results.update("table5", row)
        self.save()


class AcceleratorPage(Page):
    """A page that also holds the rows by part, for the next run."""

    results: Results

    def document(self, command: str) -> dict[str, Any]:
        """What NAME.json holds."""
        found = super().document(command)
        return {**found, "hardware": self.results.hardware, "rows": self.results.rows}


def page_of(results: Results, simulated: bool) -> Page:
    """The page, from its rows."""
    where = results.hardware
    head = ", ".join(
        [
            where["accelerator"],
            f"driver {where['driver']}",
            f"torch {where['torch']}",
            where["host"],
        ]
    )
    made = (
        "**A rehearsal on simulated devices** (docs/reference/torch_sim.md): its times say nothing."
        if simulated
        else "Measured, except what is called predicted; the steps of Tables 4 and 5 are simulated "
        "from measured costs. TF32 is off and cuDNN deterministic, which steps may pay for."
    )
    page = AcceleratorPage(
        NAME,
        "On a real accelerator",
        f"{head}. {made}",
        "d" if simulated else "c",
        accelerator_tables.tables(results.rows, results.failures, results.made),
        accelerator_tables.SUMMARY,
    )
    page.results = results
    page.lacks = results.lacks()
    return page


def run(
    *,
    folder: Path,
    minutes: float | None = None,
    simulated: str | None = None,
    parts: Iterable[str] = PARTS,
    models: Iterable[str] = (),
    devices: int = 1,
    command: str = f"./do experiments {NAME}",
) -> Page:
    """The page of this machine's accelerator.

    Args:
        folder: The one with an earlier run's page.
        minutes: After which nothing new is begun.
        simulated: The clock of simulated devices to rehearse on.
        parts: Some of PARTS.
        models: Some of models/pytorch; all when there are none.
        devices: How many simulated devices.
        command: What repeats it.

    """
    profiles = FOLDER / NAME if folder.resolve() == RESULTS else folder / "profiles"
    with hardware(simulated, devices) as found:
        results = earlier(folder / f"{NAME}.json", found.described())
        clock = Clock(None if minutes is None else 60 * minutes)

        def save() -> None:
            page_of(results, simulated is not None).write(folder, command)

        experiment = Experiment(found, results, clock, profiles, save)
        experiment.run(tuple(parts), tuple(models) or tuple(MODELS))
        return page_of(results, simulated is not None)
