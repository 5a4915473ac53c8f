# SPDX-License-Identifier: Apache-2.0
"""One model on an accelerator: alone, placed there, and over several where there are several."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch

import baechi
from experiments.accelerator_steps import Failures, Placed, Run, Subject, attempt, run_steps
from experiments.page import nanoseconds
from experiments.workloads import all_work

METHODS = ("auto", "m-topo")


def one_device_row(subject: Subject, failures: Failures) -> dict[str, Any]:
    """The unplaced model and the placed one: step times and peaks."""
    hardware, graph = subject.hardware, subject.graph
    row: dict[str, Any] = {
        "workload": subject.workload.name,
        "sizes": subject.workload.sizes(),
        "operators": len(graph),
        "predicted": all_work(graph),
    }
    plain = attempt(
        row, "unplaced", lambda: run_steps(hardware, subject.model, subject.inputs), failures
    )
    if plain is not None:
        _add_step(row, "unplaced", plain)
    found = attempt(row, "one device, placed", partial(_alone, subject), failures)
    if found is not None:
        _add_placed(row, found)
    return row


def _alone(subject: Subject) -> Placed:
    device = subject.hardware.devices[0]
    cluster = baechi.Cluster(f"1x{subject.hardware.total_memory(device)}B")
    return subject.run(cluster, [device], method="single")


def _add_step(row: dict[str, Any], name: str, run: Run) -> None:
    row[name] = nanoseconds(run.seconds)
    row[f"{name} error"] = row["predicted"] / row[name] - 1
    row[f"{name} submitted"] = None if run.submitted is None else run.submitted / run.seconds


def _add_placed(row: dict[str, Any], found: Placed) -> None:
    """Add the step, and the peak that is furthest off."""
    run = found.run
    _add_step(row, "placed", run)

    def off(device: str) -> float:
        return abs(found.peaks[device] / max(run.peaks[device] - run.held[device], 1) - 1)

    device = max(found.peaks, key=off)
    own = run.peaks[device] - run.held[device]
    row |= {
        "predicted peak": found.peaks[device],
        "peak": own,
        "held": run.held[device],
        "peak error": found.peaks[device] / max(own, 1) - 1,
        "eager parts": len(found.left_out),
    }


def spread_rows(
    subject: Subject, one: dict[str, Any], cluster: dict[str, Any], failures: Failures
) -> Iterator[dict[str, Any]]:
    """Several accelerators, where there are several."""
    devices = list(subject.hardware.devices)
    for method in METHODS if len(devices) > 1 else ():
        yield _spread_row(subject, one, cluster, devices, method, failures)


def cluster_of(cluster: dict[str, Any], devices: list[torch.device]) -> baechi.Cluster:
    """Return what the planner is told of the devices."""
    document = {**cluster, "devices": cluster["devices"][: len(devices)], "communication": "duplex"}
    names = {device["name"] for device in document["devices"]}
    document["links"] = [k for k in cluster["links"] if {k["from"], k["to"]} <= names]
    return baechi.Cluster.from_json(json.dumps(document))


def _spread_row(
    subject: Subject,
    one: dict[str, Any],
    cluster: dict[str, Any],
    devices: list[torch.device],
    method: str,
    failures: Failures,
) -> dict[str, Any]:
    row: dict[str, Any] = {
        "workload": subject.workload.name,
        "devices": len(devices),
        "method": method,
        "one": one.get("placed"),
    }
    call = partial(subject.run, cluster_of(cluster, devices), devices, method=method)
    found = attempt(row, f"{len(devices)} devices, {method}", call, failures)
    if found is not None:
        row |= {
            "transfers": len(found.plan.transfers),
            "predicted": found.plan.makespan_ns,
        }
        _add_placed(row, found)
    return row
