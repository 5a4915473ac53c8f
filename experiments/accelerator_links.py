# SPDX-License-Identifier: Apache-2.0
"""How long copies take between the devices of this machine."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from baechi.calibrate import cluster_document, measure
from baechi.measured_links import Line
from baechi.torch.costs.copy_times import copies

if TYPE_CHECKING:
    from experiments.hardware import Hardware

LARGEST = 256 << 20
REPEATS = 10


@dataclass(frozen=True)
class Links:
    """Lines of all ordered pairs of the accelerators and the host."""

    between: dict[tuple[str, str], Line]
    document: dict[str, Any]  # a cluster file


def calibrated(hardware: Hardware, *, largest: int = LARGEST, repeats: int = REPEATS) -> Links:
    """Time copies of many sizes; the lines through them."""
    found = copies([*map(str, hardware.devices), "cpu"])
    links = measure(found, largest=largest, repeats=repeats)
    return Links(
        {(link.source, link.target): link.line for link in links},
        cluster_document(found.devices, links),
    )


def rows(links: Links) -> list[dict[str, Any]]:
    """One row per ordered pair."""
    return [
        {
            "from": source,
            "to": target,
            **{key: value for key, value in asdict(line).items() if key != "seconds_per_byte"},
            "bandwidth": 1 / line.seconds_per_byte if line.seconds_per_byte else None,
        }
        for (source, target), line in links.between.items()
    ]
