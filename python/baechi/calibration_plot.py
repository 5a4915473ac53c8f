# SPDX-License-Identifier: Apache-2.0
"""A picture of measured links: time against size, both logarithmic, with the fitted lines."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

from baechi.measured_links import Measured

_WIDTH, _HEIGHT = 760, 460
_LEFT, _RIGHT, _TOP, _BOTTOM = 70, 190, 30, 50
_COLORS = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#6b6b6b", "#8c510a"]
_MOST_NAMED = 20


class _Axis:
    """Maps the logarithm of values to a stretch of the picture."""

    def __init__(self, values: Sequence[float], start: float, end: float) -> None:
        self.low = math.floor(math.log10(min(values)))
        self.high = max(math.ceil(math.log10(max(values))), self.low + 1)
        self._start, self._end = start, end

    def at(self, value: float) -> float:
        share = (math.log10(value) - self.low) / (self.high - self.low)
        return self._start + share * (self._end - self._start)

    @property
    def powers(self) -> range:
        return range(self.low, self.high + 1)


def _bytes(power: int) -> str:
    units = ["B", "kB", "MB", "GB", "TB"]
    return f"{10 ** (power % 3)} {units[power // 3]}"


def _seconds(power: int) -> str:
    units = {-4: "ps", -3: "ns", -2: "us", -1: "ms", 0: "s", 1: "ks"}
    return f"{10 ** (power % 3)} {units.get(power // 3, '?')}"


def _grid(sizes: _Axis, times: _Axis) -> list[str]:
    right, bottom = _WIDTH - _RIGHT, _HEIGHT - _BOTTOM
    parts = []
    for power in sizes.powers:
        x = sizes.at(10.0**power)
        parts.append(f'<path d="M{x:.1f} {_TOP}V{bottom}" stroke="#ddd"/>')
        if power % 3 == 0:
            parts.append(
                f'<text x="{x:.1f}" y="{bottom + 18}" text-anchor="middle">{_bytes(power)}</text>'
            )
    for power in times.powers:
        y = times.at(10.0**power)
        parts.append(f'<path d="M{_LEFT} {y:.1f}H{right}" stroke="#ddd"/>')
        parts.append(
            f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{_seconds(power)}</text>'
        )
    return parts


def plot(links: Sequence[Measured]) -> str:
    """Return an SVG document."""
    drawn = [(s.bytes, s.seconds) for link in links for s in link.samples]
    lines = [link.line.at(s.bytes) for link in links for s in link.samples]
    right, bottom = _WIDTH - _RIGHT, _HEIGHT - _BOTTOM
    sizes = _Axis([size for size, _ in drawn], _LEFT, right)
    times = _Axis([*(seconds for _, seconds in drawn), *filter(None, lines)], bottom, _TOP)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="white"/>',
        f'<text x="{_LEFT}" y="18">time of a copy by its size: dots are medians, lines the fit'
        "</text>",
        *_grid(sizes, times),
    ]
    for number, link in enumerate(links):
        color = _COLORS[number % len(_COLORS)]
        for sample in link.samples:
            parts.append(
                f'<circle cx="{sizes.at(sample.bytes):.1f}" cy="{times.at(sample.seconds):.1f}" '
                f'r="2.5" fill="{color}"/>'
            )
        first, last = link.samples[0].bytes, link.samples[-1].bytes
        steps = [first * (last / first) ** (i / 60) for i in range(61)]
        path = [(sizes.at(s), times.at(link.line.at(round(s)) or 1e-12)) for s in steps]
        points = " ".join(f"{x:.1f},{y:.1f}" for x, y in path)
        parts.append(f'<polyline points="{points}" fill="none" stroke="{color}"/>')
        if number < _MOST_NAMED:
            name = escape(f"{link.source} \N{RIGHTWARDS ARROW} {link.target}")
            y = _TOP + 12 + 18 * number
            parts.append(f'<text x="{right + 12}" y="{y}" fill="{color}">{name}</text>')
    parts.append("</svg>\n")
    return "\n".join(parts)
