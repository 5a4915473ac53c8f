# SPDX-License-Identifier: Apache-2.0
"""Regenerate the tables and the figure in docs/ that `baechi_bench` makes.

    python -m experiments.benchmark_pages growth [--bench build/release/baechi_bench]
    python -m experiments.benchmark_pages favorites [--graphs FOLDER]

``growth``: docs/placement_growth.svg and its table in docs/benchmarks.md. ``favorites``: the table
in docs/favorite_children.md; FOLDER holds the graphs of the published prototype (NAME.json.gz, see
prototype_placements.py), which are left out without it.
"""

from __future__ import annotations

import argparse
import math
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from experiments.page import write_whole
from experiments.prototype_placements import read_graph

if TYPE_CHECKING:
    from collections.abc import Sequence

ROOT = Path(__file__).resolve().parent.parent
COLORS = {"m-topo": "#1b9e77", "m-etf": "#d95f02", "m-sct": "#7570b3"}
WIDTH, HEIGHT, MARGIN = 640, 400, 60


def run(bench: Path, *arguments: str) -> str:
    """Return what the benchmark prints."""
    return subprocess.run(
        [bench, *arguments], check=True, stdout=subprocess.PIPE, text=True
    ).stdout.strip()


def replace_table(page: Path, name: str, table: str) -> None:
    """Put the table between the page's markers of that name."""
    text = page.read_text()
    begin, end = f"<!-- {name}: begin -->\n", f"<!-- {name}: end -->"
    head, rest = text.split(begin)
    tail = rest.split(end)[1]
    write_whole(page, f"{head}{begin}{table}\n{end}{tail}")


def cells(line: str) -> list[str]:
    """Split one row of a Markdown table."""
    return [cell.strip() for cell in line.strip("|").split("|")]


def growth_figure(table: str) -> str:
    """Draw milliseconds over operators, both logarithmic, beside lines that grow as n log n."""
    lines = table.splitlines()
    names = cells(lines[0])[1:]
    rows = [cells(line) for line in lines[2:]]
    sizes = [int(row[0]) for row in rows]
    times = [[float(cell.removesuffix(" ms")) for cell in row[1:]] for row in rows]
    low = math.floor(math.log10(min(min(row) for row in times)))
    high = math.ceil(math.log10(max(max(row) for row in times)))

    def x(size: float) -> float:
        share = math.log(size / sizes[0]) / math.log(sizes[-1] / sizes[0])
        return MARGIN + share * (WIDTH - 2 * MARGIN)

    def y(milliseconds: float) -> float:
        share = (math.log10(milliseconds) - low) / (high - low)
        return HEIGHT - MARGIN - share * (HEIGHT - 2 * MARGIN)

    def path(points: Sequence[tuple[float, float]], style: str) -> str:
        joined = " ".join(f"{x(size):.1f},{y(time):.1f}" for size, time in points)
        return f'<polyline points="{joined}" fill="none" {style}/>'

    def text(at: tuple[float, float], words: str, style: str = "") -> str:
        return f'<text x="{at[0]:.1f}" y="{at[1]:.1f}" {style}>{words}</text>'

    svg = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
    ]
    for exponent in range(low, high + 1):
        at = y(10**exponent)
        svg.append(f'<path d="M{MARGIN} {at:.1f}H{WIDTH - MARGIN}" stroke="#ddd"/>')
        svg.append(text((MARGIN - 8, at + 4), f"{10**exponent:g} ms", 'text-anchor="end"'))
    for size in sizes:
        svg.append(text((x(size), HEIGHT - MARGIN + 18), f"{size:,}", 'text-anchor="middle"'))
    svg.append(text((WIDTH / 2, HEIGHT - 16), "operators", 'text-anchor="middle"'))
    for column, name in enumerate(names):
        first = times[0][column]
        least = [
            (size, first * size * math.log(size) / (sizes[0] * math.log(sizes[0])))
            for size in sizes
        ]
        svg.append(path(least, 'stroke="#999" stroke-dasharray="3 3"'))
        measured = [(size, row[column]) for size, row in zip(sizes, times, strict=True)]
        svg.append(path(measured, f'stroke="{COLORS[name]}" stroke-width="2"'))
        last = measured[-1]
        svg.append(text((x(last[0]) + 6, y(last[1]) + 4), name, f'fill="{COLORS[name]}"'))
    return "\n".join([*svg, "</svg>\n"])


def growth(bench: Path) -> None:
    """Write the figure and the table of placement times over graph sizes."""
    table = run(bench, "growth")
    replace_table(ROOT / "docs/benchmarks.md", "growth", table)
    write_whole(ROOT / "docs/placement_growth.svg", growth_figure(table))


def favorites(bench: Path, folder: Path | None) -> None:
    """Write the table that compares ways to choose favorite children."""
    with tempfile.TemporaryDirectory() as temporary:
        graphs: list[str] = []
        if folder is not None:
            for path in sorted(folder.glob("*.json.gz")):
                if path.name == "prototype_placements.json.gz":
                    continue
                graphs.append(str(Path(temporary) / path.name.removesuffix(".gz")))
                read_graph(path).save(graphs[-1])
        table = run(bench, "favorites", *graphs)
    replace_table(ROOT / "docs/favorite_children.md", "favorites", table)


def main() -> None:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("page", choices=["growth", "favorites"])
    parser.add_argument("--bench", type=Path, default=ROOT / "build/release/baechi_bench")
    parser.add_argument("--graphs", type=Path, help="graphs of the published prototype")
    arguments = parser.parse_args()
    if not arguments.bench.is_file():
        parser.error(f"--bench: there is no {arguments.bench}; build the preset release")
    if arguments.graphs is not None and not arguments.graphs.is_dir():
        parser.error(f"--graphs: there is no folder {arguments.graphs}")
    if arguments.page == "growth":
        growth(arguments.bench)
    else:
        favorites(arguments.bench, arguments.graphs)


if __name__ == "__main__":
    main()
