# SPDX-License-Identifier: Apache-2.0
"""Regenerate the tables and the figure in docs/ that `baechi_bench` makes.

    python -m experiments.benchmark_pages growth [--bench build/release/baechi_bench]
    python -m experiments.benchmark_pages favorites [--graphs FOLDER]

``growth``: docs/lab/placement_growth.svg and its table in docs/lab/benchmarks.md. ``favorites``:
the table in docs/explanation/favorite_children.md; FOLDER holds the graphs of the published
prototype (NAME.json.gz, see prototype_placements.py), which are left out without it.
"""

from __future__ import annotations

import argparse
import math
import subprocess
import tempfile
from pathlib import Path

from experiments.page import ROOT, write_whole
from experiments.prototype_placements import read_graph
from experiments.svg import Axis, covering, lines


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
    head, _, *rest = table.splitlines()
    rows = [cells(line) for line in rest]
    sizes = [float(row[0]) for row in rows]
    series = {
        name: [
            (size, float(row[column].removesuffix(" ms")))
            for size, row in zip(sizes, rows, strict=True)
        ]
        for column, name in enumerate(cells(head)[1:], 1)
    }
    n_log_n = [size * math.log(size) for size in sizes]
    beside = [
        [(size, line[0][1] * much / n_log_n[0]) for size, much in zip(sizes, n_log_n, strict=True)]
        for line in series.values()
    ]
    values = [value for line in (*series.values(), *beside) for _, value in line]
    x = Axis(sizes[0], sizes[-1], True, "{:,.0f}".format, "operators", tuple(sizes))
    return lines(x, covering(values, log=True, show="{:g} ms".format), series, beside)


def growth(bench: Path) -> None:
    """Write the figure and the table of placement times over graph sizes."""
    table = run(bench, "growth")
    replace_table(ROOT / "docs/lab/benchmarks.md", "growth", table)
    write_whole(ROOT / "docs/lab/placement_growth.svg", growth_figure(table))


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
    replace_table(ROOT / "docs/explanation/favorite_children.md", "favorites", table)


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
