# SPDX-License-Identifier: Apache-2.0
"""A model too large for its accelerator trains with a part of it on the CPU."""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING, Any

import baechi.torch
import torch

import baechi
from experiments.accelerator_links import HOST
from experiments.accelerator_steps import run_steps
from experiments.torch_workloads import PROFILED, TINY
from models.pytorch import loss_of

if TYPE_CHECKING:
    from experiments.accelerator_links import Links
    from experiments.hardware import Hardware
    from experiments.torch_workloads import TorchWorkload

NAMES = ("transformer", "vit", "unet")
PART = 0.6  # of what the model needs is what the accelerator may hold
LOSSES = 4
RATE = 1e-3


def workloads(hardware: Hardware) -> list[TorchWorkload]:
    """Return models whose steps a CPU can also run in seconds.

    Without dropout: its masks are others on each device, and losses are to be compared.
    """
    sizes = PROFILED if hardware.clock is None else TINY
    return [without_dropout(sizes[name]) for name in NAMES]


def without_dropout(workload: TorchWorkload) -> TorchWorkload:
    """Return the same model with no dropout in it."""
    if not getattr(workload.config, "dropout", 0.0):
        return workload
    return dataclasses.replace(workload, changes={**workload.changes, "dropout": 0.0})


def capped(links: Links, cap: int) -> baechi.Cluster:
    """Return one accelerator that may hold `cap` bytes, and the host, with their measured links."""
    known = links.document
    devices = [d for d in known["devices"] if d["name"] in ("gpu:0", HOST)]
    pairs = [k for k in known["links"] if {k["from"], k["to"]} == {"gpu:0", HOST}]
    devices = [{**d, "capacity": cap} if d["name"] != HOST else d for d in devices]
    document = {**known, "devices": devices, "links": pairs, "communication": "sequential"}
    return baechi.Cluster.from_json(json.dumps(document))


def losses_of(model: Any, inputs: Any) -> list[float]:
    """Train some steps and return the losses."""
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    found = []
    for _ in range(LOSSES):
        optimizer.zero_grad()
        loss = model(**inputs)
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    return found


def row(workload: TorchWorkload, hardware: Hardware, links: Links) -> dict[str, Any]:
    """Train on the CPU alone, then with a capped accelerator; losses, peaks and step times."""
    hardware.settle()
    device, cpu = hardware.devices[0], torch.device("cpu")
    inputs = workload.inputs()
    expected = losses_of(workload.model(), inputs)
    model = workload.model()
    single: dict[str, Any] = {"loss": loss_of, "optimizer": "sgd", "method": "single"}
    need = baechi.torch.plan(model, inputs, "1x1TiB", verbose=False, **single).peaks["gpu:0"]
    cap = int(PART * need)
    placed = baechi.torch.place(
        model,
        inputs,
        capped(links, cap),
        devices=[device, cpu],
        costs="measure",
        loss=loss_of,
        optimizer="sgd",
        bounds=False,
        verbose=False,
    )
    try:
        return _measured(workload, hardware, placed, expected) | {
            "workload": workload.name,
            "sizes": workload.sizes(),
            "need": need,
            "cap": cap,
        }
    finally:
        hardware.synchronize()
        placed.restore()


def _measured(
    workload: TorchWorkload, hardware: Hardware, placed: Any, expected: list[float]
) -> dict[str, Any]:
    device = hardware.devices[0]
    inputs = workload.inputs(str(device))
    found = losses_of(placed.model, inputs)
    run = run_steps(hardware, placed.model, inputs)
    plan, name = placed.plan, str(device)
    peak = run.peaks[name] - run.held[name]
    measured = round(run.seconds * 1e9) if hardware.wall else None
    return {
        "on_cpu": sum(d == HOST for d in plan.device_of.values()) / len(plan.device_of),
        "transfers": len(plan.transfers),
        "losses": found,
        "losses_alone": expected,
        "loss_difference": max(
            abs(a - b) / max(abs(a), 1e-9) for a, b in zip(expected, found, strict=True)
        ),
        "predicted_peak": placed.peaks["gpu:0"],
        "peak": peak,
        "held": run.held[name],
        "peak_error": placed.peaks["gpu:0"] / peak - 1 if peak else None,  # unused: no peak
        "predicted": plan.makespan_ns,
        "measured": measured,
        "error": None if measured is None else plan.makespan_ns / measured - 1,
    }
