# SPDX-License-Identifier: Apache-2.0
"""Pages of results: tables as Markdown to read, their raw values as CSV, and figures."""

from __future__ import annotations

import csv
import datetime
import io
import json
import os
import platform
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import baechi

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "docs/lab/results"
Row: TypeAlias = Mapping[str, Any]
Show: TypeAlias = Callable[[Any], str]

# Tables of more rows are in the raw values only.
LONGEST = 20

COSTS = {
    "a": "(a) estimated by a roofline (docs/reference/generate.md)",
    "b": "(b) profiles measured on this machine's CPU",
    "c": "(c) profiles measured on a GPU",
    "d": "(d) measured on a simulated accelerator",
}


def milliseconds(nanoseconds: int) -> str:
    """Four significant digits, at most one decimal."""
    value = nanoseconds / 1e6
    return f"{value:.1f}" if value >= 10 else f"{value:.3g}"


def cpu_time(seconds: float) -> str:
    """Say how long, in the unit that suits."""
    if seconds < 1:
        return f"{seconds * 1e3:.3g} ms"
    return f"{seconds:.3g} s" if seconds < 600 else f"{seconds / 60:.3g} min"


def microseconds(seconds: float) -> str:
    """Three significant digits."""
    return f"{seconds * 1e6:.3g}"


def nanoseconds(seconds: float) -> int:
    """Return what the rows hold of a time."""
    return round(seconds * 1e9)


def gibibytes(count: int) -> str:
    """Two decimals."""
    return f"{count / 2**30:.2f}"


def mebibytes(count: int) -> str:
    """One decimal."""
    return f"{count / 2**20:.1f}"


def gigabytes(per_second: float) -> str:
    """Three significant digits."""
    return f"{per_second / 1e9:.3g}"


def percent(part: float) -> str:
    """One decimal."""
    return f"{part:.1%}"


def times(ratio: float) -> str:
    """How many times, two decimals."""
    return f"{ratio:.2f}x"


def count(number: int) -> str:
    """Thousands apart."""
    return f"{number:,}"


@dataclass(frozen=True)
class Column:
    """One column: which field of the rows, under which title, shown how."""

    key: str
    title: str
    show: Show = str  # text is to the left, numbers to the right
    none: str = "-"  # what is shown where the field is absent or None

    def cell(self, row: Row) -> str:
        """The row's text in this column."""
        value = row.get(self.key)
        return self.none if value is None else self.show(value)


@dataclass
class Table:
    """Rows of raw values (nanoseconds, bytes, seconds), and how to show them."""

    title: str
    columns: list[Column]
    rows: list[dict[str, Any]] = field(default_factory=list)
    notes: str = ""
    below: str = ""  # what is to be said about single rows
    raw_only: bool = False  # its rows are in the raw values only, however few they are

    def markdown(self, raw: str = "") -> str:
        """The table and its notes; where it is long, the file of raw values instead of its rows."""
        lines = [f"## {self.title}", ""] if self.title else []
        if self.notes:
            lines += [self.notes, ""]
        if raw and (self.raw_only or len(self.rows) > LONGEST):
            lines.append(f"The {len(self.rows)} rows are in [{raw}]({raw}).")
        else:
            lines.append("| " + " | ".join(column.title for column in self.columns) + " |")
            rules = ("---" if column.show is str else "---:" for column in self.columns)
            lines.append("| " + " | ".join(rules) + " |")
            for row in self.rows:
                lines.append("| " + " | ".join(column.cell(row) for column in self.columns) + " |")
        if self.below:
            lines += ["", self.below]
        return "\n".join(lines)


@dataclass
class Page:
    """What one experiment writes: NAME.md, NAME.csv and the figures NAME_*.svg."""

    name: str
    title: str
    simulated: str  # what of it is simulated and what is measured
    costs: str  # some of the letters of COSTS
    tables: list[Table]
    summary: str = ""
    figures: dict[str, tuple[str, str]] = field(default_factory=dict)  # (caption, SVG) by name
    made: dict[str, str] = field(default_factory=lambda: machine())
    sizes: str = ""  # what the sizes of models are measured by; "": the rows have none
    lacks: str = ""  # what was asked for and is not on it, in one line: the command then fails

    @property
    def raw(self) -> str:
        """The file of raw values."""
        return f"{self.name}.csv"

    def markdown(self, command: str) -> str:
        """The whole page."""
        parts = [
            f"# {self.title}",
            f"{self.simulated}\n\nCosts: {'; '.join(COSTS[letter] for letter in self.costs)}.  \n"
            f"{in_words(self.made)}; `{command}`. "
            f"Raw values: [{self.raw}]({self.raw}).",
        ]
        if self.summary:
            parts.append(self.summary)
        parts += [
            f"![{caption}]({self.name}_{key}.svg)\n\n*{caption}*"
            for key, (caption, _) in self.figures.items()
        ]
        parts += [table.markdown(self.raw) for table in self.tables]
        if self.sizes:
            parts.append(self._sizes().markdown())
        return "\n\n".join(parts) + "\n"

    def _sizes(self) -> Table:
        """Every model once, with the sizes that its rows have."""
        rows = [row for table in self.tables for row in table.rows if "sizes" in row]
        known = dict.fromkeys((row["workload"], row["sizes"]) for row in rows)
        columns = [Column("workload", "model"), Column("sizes", "size")]
        return Table("Sizes", columns, [{"workload": w, "sizes": s} for w, s in known], self.sizes)

    def write(self, folder: Path, command: str) -> list[Path]:
        """Write the page's files and return their paths."""
        folder.mkdir(parents=True, exist_ok=True)
        raw = as_csv({table.title: table.rows for table in self.tables})
        texts = {f"{self.name}.md": self.markdown(command), self.raw: raw}
        for key, (_, svg) in self.figures.items():
            texts[f"{self.name}_{key}.svg"] = svg
        for name, content in texts.items():
            write_whole(folder / name, content)
        return [folder / name for name in texts]


def as_csv(tables: Mapping[str, list[dict[str, Any]]]) -> str:
    """Write rows of several tables as one: each has its table's title, and cells are JSON."""
    keys = dict.fromkeys(key for rows in tables.values() for row in rows for key in row)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["table", *keys])
    for title, rows in tables.items():
        for row in rows:
            writer.writerow([title, *(as_cell(row.get(key)) for key in keys)])
    return text.getvalue()


def as_cell(value: Any) -> str:
    """Text as it is, nothing for nothing, and all else as JSON."""
    if value is None or isinstance(value, str):
        return value or ""
    return json.dumps(value, separators=(",", ":"))


def from_csv(text: str) -> dict[str, list[dict[str, Any]]]:
    """Read what as_csv() wrote: rows by their table's title, without what is nothing."""
    tables: dict[str, list[dict[str, Any]]] = {}
    for row in csv.DictReader(io.StringIO(text)):
        title = row.pop("table")
        tables.setdefault(title, []).append({k: from_cell(v) for k, v in row.items() if v})
    return tables


def from_cell(text: str) -> Any:
    """Return a cell's value."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def changes(sizes: Mapping[str, Any]) -> str:
    """Say which sizes of a model are not the usual ones."""
    return ", ".join(f"{key.replace('_', ' ')} {value}" for key, value in sizes.items())


def in_words(made: Mapping[str, str]) -> str:
    """Say when and where figures were made."""
    return "{date}, {machine}, Python {python}, baechi {baechi}".format(**made)


def write_whole(path: Path, content: str | bytes) -> None:
    """Write a file in one go: a run that is cut short leaves the old one, not a part."""
    beside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        beside.write_bytes(content.encode() if isinstance(content, str) else content)
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)


def machine() -> dict[str, str]:
    """When and where the figures are made."""
    model = platform.machine()
    cpus = Path("/proc/cpuinfo")
    if cpus.exists():
        names = [line for line in cpus.read_text().splitlines() if line.startswith("model name")]
        model = names[0].split(":", 1)[1].strip() if names else model
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {
        "date": datetime.date.today().isoformat(),
        "machine": f"{model}, {cores} cores",
        "python": platform.python_version(),
        "baechi": baechi.__version__,
    }
