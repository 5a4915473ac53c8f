# SPDX-License-Identifier: Apache-2.0
"""How long copies take on this machine: between its devices, and within one."""

from __future__ import annotations

import statistics
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import torch
from baechi.calibrate import cluster_document, fit, measure, sizes_up_to
from baechi.measured_links import Line
from baechi.torch.costs.copy_times import copies
from baechi.torch.costs.measured import Clock

if TYPE_CHECKING:
    from collections.abc import Iterable

    from experiments.hardware import Hardware

LARGEST = 256 << 20
REPEATS = 10
HOST = "cpu:0"  # as calibration and cluster lines call it


@dataclass(frozen=True)
class Links:
    """Lines of all ordered pairs of the accelerators and the host, and of a copy within one."""

    between: dict[tuple[str, str], Line]
    within: Line
    document: dict[str, Any]  # a cluster file

    def through_host(self) -> Line:
        """Return the line of a copy from one accelerator to another by way of the host."""
        there, back = self.between["gpu:0", HOST], self.between[HOST, "gpu:0"]
        return Line(
            there.latency + back.latency, there.seconds_per_byte + back.seconds_per_byte, 0.0
        )


def calibrated(hardware: Hardware, *, largest: int = LARGEST, repeats: int = REPEATS) -> Links:
    """Time copies of many sizes; the lines through them."""
    found = copies([*map(str, hardware.devices), "cpu"])
    links = measure(found, largest=largest, repeats=repeats)
    return Links(
        {(link.source, link.target): link.line for link in links},
        within_one(hardware, sizes_up_to(largest), repeats),
        cluster_document(found.devices, links),
    )


def within_one(hardware: Hardware, sizes: Iterable[int], repeats: int) -> Line:
    """Time copies from and to the memory of the first device, as a copy on one device is made."""
    device = hardware.devices[0]
    clock = Clock(device)
    points = []
    for size in sizes:
        sent = torch.ones(size, dtype=torch.uint8, device=device)
        sent.clone()
        took = [clock.time(sent.clone) for _ in range(repeats)]
        points.append((size, max(statistics.median(took), 1) / 1e9))
    return fit(points)


def rows(links: Links) -> list[dict[str, Any]]:
    """One row per ordered pair, and one for copies within a device."""
    lines = {**links.between, ("gpu:0", "gpu:0"): links.within}
    return [
        {
            "from": source,
            "to": target,
            **{key: value for key, value in asdict(line).items() if key != "seconds_per_byte"},
            "bandwidth": 1 / line.seconds_per_byte if line.seconds_per_byte else None,
        }
        for (source, target), line in lines.items()
    ]


def words(line: Line) -> str:
    """Return a line as clusters are told it."""
    latency = f"{max(round(line.latency * 1e9), 0)}ns"
    if line.seconds_per_byte <= 0:
        return latency
    return f"{latency},{max(round(1e-3 / line.seconds_per_byte), 1)}kB/s"
