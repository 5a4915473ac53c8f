# SPDX-License-Identifier: Apache-2.0
"""Figures as SVG: bars in groups, and boxes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from html import escape

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 640, 400, 70, 30, 44, 55
COLORS = ("#1b9e77", "#d95f02", "#7570b3", "#e7298a", "#66a61e", "#e6ab02", "#a6761d", "#666666")
Point = tuple[float, float]


@dataclass(frozen=True)
class Axis:
    """Maps values to 0..1, and says where the marks are."""

    low: float
    high: float
    title: str = ""

    def share(self, value: float) -> float:
        """How far along the axis a value is."""
        return (value - self.low) / (self.high - self.low)

    def marks(self) -> list[float]:
        """About five round values."""
        step = 10 ** math.floor(math.log10((self.high - self.low) / 4))
        step *= next(s for s in (1, 2, 5, 10) if (self.high - self.low) / (s * step) <= 6)
        first = math.ceil(self.low / step)
        return [k * step for k in range(first, math.floor(self.high / step) + 1)]


@dataclass
class Canvas:
    """An SVG being drawn; a panel is a rectangle of it with axes of its own."""

    width: float = WIDTH
    height: float = HEIGHT
    parts: list[str] = field(default_factory=list)

    def text(self, at: Point, words: str, style: str = "") -> None:
        """Words at a point."""
        self.parts.append(f'<text x="{at[0]:.1f}" y="{at[1]:.1f}" {style}>{escape(words)}</text>')

    def rectangle(self, corner: Point, size: Point, style: str) -> None:
        """A box."""
        self.parts.append(
            f'<rect x="{corner[0]:.1f}" y="{corner[1]:.1f}" width="{size[0]:.1f}" '
            f'height="{size[1]:.1f}" {style}/>'
        )

    def line(self, points: Sequence[Point], style: str) -> None:
        """A polyline."""
        joined = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        self.parts.append(f'<polyline points="{joined}" fill="none" {style}/>')

    def svg(self) -> str:
        """The whole document."""
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width:g} '
            f'{self.height:g}" font-family="sans-serif" font-size="12">'
        )
        white = f'<rect width="{self.width:g}" height="{self.height:g}" fill="white"/>'
        return "\n".join([head, white, *self.parts, "</svg>\n"])


@dataclass
class Panel:
    """A part of a canvas with its axes."""

    canvas: Canvas
    y: Axis
    left: float = LEFT
    width: float = WIDTH - LEFT - RIGHT
    top: float = TOP
    height: float = HEIGHT - TOP - BOTTOM

    def at(self, x: float, y: float) -> Point:
        """Where a point is: x is a share of the width."""
        return self.left + x * self.width, self.top + (1 - self.y.share(y)) * self.height

    def frame(self, title: str = "") -> None:
        """Grid, marks and titles."""
        for mark in self.y.marks():
            _, at = self.at(0, mark)
            self.canvas.line([(self.left, at), (self.left + self.width, at)], 'stroke="#ddd"')
            self.canvas.text((self.left - 6, at + 4), f"{mark:g}", 'text-anchor="end"')
        middle = self.left + self.width / 2
        self.canvas.text((self.left - 40, self.top - 28), self.y.title, 'fill="#444"')
        self.canvas.text((middle, self.top - 10), title, 'text-anchor="middle"')


@dataclass(frozen=True)
class Bars:
    """One panel of grouped bars: for every group (name) its values; a limit is a dashed line."""

    title: str
    groups: dict[str, list[float]]
    limit: float


def grouped_bars(panels: Sequence[Bars], y_title: str) -> str:
    """Panels side by side with one axis; bars beyond the limit of their panel are red."""
    each = 60.0 + 46 * max(len(panel.groups) for panel in panels)
    longest = max(len(name) for panel in panels for name in panel.groups)
    names = max(66.0, 24 + 4.2 * longest)  # what turned names take below the axis
    canvas = Canvas(LEFT + each * len(panels), HEIGHT - 106 + names)
    values = [v for panel in panels for group in panel.groups.values() for v in group]
    y = Axis(0.0, 1.05 * max(*values, *(panel.limit for panel in panels)) or 1.0, y_title)
    for number, bars in enumerate(panels):
        axis = y if number == 0 else replace(y, title="")
        panel = Panel(canvas, axis, LEFT + number * each, each - 40, TOP, HEIGHT - 150)
        panel.frame(bars.title)
        bottom = panel.at(0, 0)[1]
        for place, (name, group) in enumerate(bars.groups.items()):
            left = panel.left + place * panel.width / len(bars.groups) + 4
            width = (panel.width / len(bars.groups) - 8) / max(len(group), 1)
            for k, value in enumerate(group):
                top = panel.at(0, value)[1]
                red = value > bars.limit
                color = "#c0392b" if red else COLORS[place % len(COLORS)]
                style = f'fill="{color}" stroke="white" stroke-width="0.5"'
                canvas.rectangle((left + k * width, top), (width, bottom - top), style)
            if not group:
                canvas.text((left + 4, bottom - 4), "none fits", 'font-size="9" fill="#c0392b"')
            turn = f'transform="rotate(35 {left + 6:.1f} {bottom + 14:.1f})"'
            canvas.text((left + 6, bottom + 14), name, f'{turn} font-size="11"')
        limit = [panel.at(0, bars.limit), panel.at(1, bars.limit)]
        canvas.line(limit, 'stroke="#222" stroke-dasharray="5 4"')
    return canvas.svg()


@dataclass(frozen=True)
class Box:
    """Least, quartiles and largest of one thing."""

    name: str
    least: float
    lower: float
    median: float
    upper: float
    largest: float


def boxes(panels: dict[str, list[Box]], y: Axis) -> str:
    """Boxes with whiskers; one panel per title, side by side."""
    each = 60.0 + 52 * max(len(row) for row in panels.values())
    canvas = Canvas(LEFT + each * len(panels), HEIGHT - 40)
    for number, (title, row) in enumerate(panels.items()):
        axis = y if number == 0 else replace(y, title="")
        panel = Panel(canvas, axis, LEFT + number * each, each - 40, TOP, HEIGHT - 150)
        panel.frame(title)
        bottom = panel.top + panel.height
        for place, box in enumerate(row):
            color = COLORS[place % len(COLORS)]
            middle = panel.left + (place + 0.5) * panel.width / len(row)
            tops = [panel.at(0, min(v, y.high))[1] for v in (box.least, box.largest)]
            canvas.line([(middle, tops[0]), (middle, tops[1])], f'stroke="{color}"')
            high, low = (panel.at(0, min(v, y.high))[1] for v in (box.upper, box.lower))
            style = f'fill="{color}" fill-opacity="0.35" stroke="{color}"'
            canvas.rectangle((middle - 11, high), (22, max(low - high, 1)), style)
            at = panel.at(0, min(box.median, y.high))[1]
            canvas.line(
                [(middle - 11, at), (middle + 11, at)], f'stroke="{color}" stroke-width="3"'
            )
            turn = f'transform="rotate(35 {middle - 6:.1f} {bottom + 14:.1f})"'
            canvas.text((middle - 6, bottom + 14), box.name, f'{turn} font-size="11"')
    return canvas.svg()
