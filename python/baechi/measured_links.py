# SPDX-License-Identifier: Apache-2.0
"""What was measured of the copies between devices: samples, and the line through them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Sample:
    """How long the copies of one size took."""

    bytes: int
    seconds: float  # the median
    repeats: int


@dataclass(frozen=True)
class Line:
    """seconds = latency + bytes * seconds_per_byte."""

    latency: float
    seconds_per_byte: float
    error: float  # median of the samples' relative distances from the line

    def at(self, size: int) -> float:
        """Return the seconds for a size."""
        return self.latency + size * self.seconds_per_byte


@dataclass(frozen=True)
class Measured:
    """What is known of the link from one device to another."""

    source: str
    target: str
    samples: list[Sample]
    line: Line
