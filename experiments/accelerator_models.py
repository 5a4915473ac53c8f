# SPDX-License-Identifier: Apache-2.0
"""One model on an accelerator: alone, and over several logical or physical devices."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch

import baechi
from experiments.accelerator_links import Links, words
from experiments.accelerator_steps import Run, Spread, Subject, attempt, run_steps
from experiments.page import nanoseconds
from experiments.program_order import in_program_order
from experiments.torch_workloads import MODES
from experiments.workloads import all_work

PLACEMENTS = ((2, "auto"), (4, "m-topo"))
Failures = list[dict[str, str]]


def one_device_row(subject: Subject, failures: Failures) -> dict[str, Any]:
    """The unplaced model, and the placed one in both tiers: step times and peaks."""
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
    for tier in (1, 2):
        call = partial(_alone, subject, tier)
        found = attempt(row, f"one device, tier {tier}", call, failures)
        if found is not None:
            _add_step(row, f"tier {tier}", found)
            device = str(hardware.devices[0])
            peak = subject.peak(subject.alone(), {"all": device}, tier, "all")[device]
            _add_peak(row, f"tier {tier}", peak, found, device)
    return row


def _alone(subject: Subject, tier: int) -> Run:
    device = str(subject.hardware.devices[0])
    return subject.run(subject.alone(), {"all": device}, tier)


def _add_step(row: dict[str, Any], name: str, run: Run) -> None:
    row[name] = nanoseconds(run.seconds)
    row[f"{name} error"] = row["predicted"] / row[name] - 1
    row[f"{name} submitted"] = None if run.submitted is None else run.submitted / run.seconds
    row[f"{name} steps"] = run.steps


def _worst(predicted: dict[str, int], run: Run) -> tuple[int, Run, str]:
    """Return the peak that is furthest off, with its device."""

    def off(device: str) -> float:
        return abs(predicted[device] / max(run.peaks[device] - run.held[device], 1) - 1)

    device = max(predicted, key=off)
    return predicted[device], run, device


def _add_peak(row: dict[str, Any], name: str, predicted: int, run: Run, device: str) -> None:
    own = run.peaks[device] - run.held[device]
    row[f"{name} predicted peak"] = predicted
    row[f"{name} peak"] = own
    row[f"{name} held"] = run.held[device]
    row[f"{name} requested"] = run.requested[device]
    row[f"{name} peak error"] = predicted / max(own, 1) - 1


def spread_rows(
    subject: Subject, one: dict[str, Any], links: Links, failures: Failures
) -> Iterator[dict[str, Any]]:
    """Several logical devices on the first physical one; and the physical ones, where several."""
    first = subject.hardware.devices[0]
    for count, method in PLACEMENTS:
        yield _spread_row(subject, one, links, [first] * count, method, failures)
    count = len(subject.hardware.devices)
    if count > 1:
        for method in dict(PLACEMENTS).values():
            physical = list(subject.hardware.devices)
            yield _spread_row(subject, one, links, physical, method, failures)


def cluster_of(subject: Subject, links: Links, physical: list[torch.device]) -> baechi.Cluster:
    """Return what the planner is told of the devices."""
    shared = len(set(physical)) == 1
    total = subject.hardware.total_memory(physical[0])
    count = len(physical)
    if shared:
        return baechi.Cluster(
            f"{count}x{total // count}B", link=words(links.within), communication="parallel"
        )
    known = links.document
    document = {**known, "devices": known["devices"][:count], "communication": "parallel"}
    names = {device["name"] for device in document["devices"]}
    document["links"] = [k for k in known["links"] if {k["from"], k["to"]} <= names]
    return baechi.Cluster.from_json(json.dumps(document))


def _spread_row(
    subject: Subject,
    one: dict[str, Any],
    links: Links,
    physical: list[torch.device],
    method: str,
    failures: Failures,
) -> dict[str, Any]:
    shared = len(set(physical)) == 1
    row: dict[str, Any] = {
        "workload": subject.workload.name,
        "devices": f"{len(physical)} {'logical' if shared else 'physical'}",
        "method": method,
        "one": one.get("tier 1"),
    }
    graph, cluster = subject.graph, cluster_of(subject, links, physical)
    plan = attempt(
        row,
        f"a plan by {method}",
        lambda: baechi.place_graph(graph, cluster, method, bounds=False),
        failures,
    )
    if plan is None:
        return row
    names = [device.name for device in plan.cluster.devices]
    spread = Spread(subject, plan, dict(zip(names, physical, strict=True)))
    chained = baechi.simulate(in_program_order(graph, plan.device_of), plan.cluster, plan.device_of)
    sizes = [transfer[3] for transfer in plan.transfers]
    row |= {
        "used": len(set(plan.device_of.values())),
        "transfers": len(sizes),
        "bytes": sum(sizes),
        "copies": nanoseconds(sum(map(links.within.at, sizes))) if shared else None,
        "predicted": chained.makespan_ns,
    }
    if shared:  # they have one processor: all work, and the copies, one after the other
        row["predicted"] = one["predicted"] + row["copies"]
    _run_modes(row, spread, failures)
    return row


def _run_modes(row: dict[str, Any], spread: Spread, failures: Failures) -> None:
    """Step times of every mode, and the peaks of both tiers."""
    for name, (mode, tier) in MODES.items():
        found = attempt(
            row,
            f"{row['devices']}, {row['method']}, {name}",
            partial(spread.run, mode, tier),
            failures,
        )
        if found is None:
            continue
        _add_step(row, name, found)
        if mode == "streams":
            predicted = spread.peaks(tier)
            _add_peak(row, f"tier {tier}", *_worst(predicted, found))
