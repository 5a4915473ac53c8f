# SPDX-License-Identifier: Apache-2.0
"""What needs a real accelerator: links, and steps and peaks beside their predictions."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

from baechi.calibrate import cluster_document, measure
from baechi.torch.costs.copy_times import copies

from experiments import accelerator_tables
from experiments.accelerator_models import one_device_row, spread_rows
from experiments.accelerator_steps import Failures, attempt, subject_of
from experiments.accelerator_tables import Rows
from experiments.hardware import Hardware, hardware
from experiments.page import Page
from models.pytorch import MODELS

NAME = "accelerator"


def links_of(found: Hardware) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Time copies between the devices and the host: a row for each pair, and a cluster file."""
    between = copies([*map(str, found.devices), "cpu"])
    largest, repeats = (1 << 20, 3) if found.clock else (256 << 20, 10)
    links = measure(between, largest=largest, repeats=repeats)
    rows = [
        {
            "from": link.source,
            "to": link.target,
            "latency": link.line.latency,
            "bandwidth": 1 / link.line.seconds_per_byte if link.line.seconds_per_byte else None,
            "error": link.line.error,
        }
        for link in links
    ]
    return rows, cluster_document(between.devices, links)


def _of_model(
    name: str, found: Hardware, cluster: dict[str, Any], rows: Rows, failures: Failures
) -> None:
    """Add the rows of a model."""
    subject = subject_of(name, found)
    row = one_device_row(subject, failures)
    rows["models"].append(row)
    rows["spread"] += spread_rows(subject, row, cluster, failures)


def page_of(where: str, simulated: bool, rows: Rows, failures: Failures) -> Page:
    """The page, from its rows."""
    made = (
        "**A rehearsal on simulated devices** (docs/reference/torch_sim.md): its times say nothing."
        if simulated
        else "Measured, except what is called predicted. TF32 is off and cuDNN deterministic, "
        "which steps may pay for."
    )
    measured = any(row.get("placed") for row in (*rows["models"], *rows["spread"]))
    return Page(
        NAME,
        "On a real accelerator",
        f"{where}. {made}",
        "d" if simulated else "c",
        accelerator_tables.tables(rows, failures),
        accelerator_tables.SUMMARY,
        lacks="" if measured else "no step of a placed model was measured",
    )


def run(
    *,
    folder: Path,
    simulated: str | None = None,
    models: Iterable[str] = (),
    devices: int = 1,
    command: str = f"./do experiments {NAME}",
) -> Page:
    """The page of this machine's accelerator; written after every model, as it may be cut short.

    Args:
        folder: Where it goes.
        simulated: The clock of simulated devices to rehearse on.
        models: Some of models/pytorch; all when there are none.
        devices: How many simulated devices.
        command: What repeats it.

    """
    rows: Rows = {"models": [], "spread": []}
    failures: Failures = []
    with hardware(simulated, devices) as found:
        rows["links"], cluster = links_of(found)
        for name in tuple(models) or tuple(MODELS):
            print(f"    {name}", file=sys.stderr, flush=True)
            call = partial(_of_model, name, found, cluster, rows, failures)
            attempt({"workload": name}, "its steps", call, failures)
            page = page_of(found.described(), simulated is not None, rows, failures)
            page.write(folder, command)
        return page
