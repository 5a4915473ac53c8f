# SPDX-License-Identifier: Apache-2.0
"""What runs on an accelerator have found, this one and earlier ones, and what failed."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

Row: TypeAlias = dict[str, Any]
Failures: TypeAlias = list[dict[str, str]]

NOT_REACHED = "not reached in the time"
# By table, in the order in which they are made: as people call what its rows are about.
TABLES = {
    "links": "links",
    "host": "accelerator and CPU",
    "models": "steps on one device",
    "spread": "steps over several devices",
    "table4": "Table 4",
    "table5": "Table 5",
}
WAYS = ("unplaced", "placed")  # of running a model on one device
# What a row has to have one of to say anything; those of other tables are whole or not there.
STEPS = {"models": WAYS, "spread": ("placed",)}
KEYS = ("workload", "devices", "method", "from", "to", "memory")


def has_figures(table: str, row: Mapping[str, Any]) -> bool:
    """Tell whether anything in a row was measured."""
    return table not in STEPS or any(row.get(key) is not None for key in STEPS[table])


def same_hardware(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Tell whether figures of both belong on one page."""
    return all(one.get(key) == other.get(key) for key in ("accelerator", "kind", "torch"))


@dataclass
class Results:
    """Rows by table, and by table what failed or was not reached."""

    hardware: dict[str, str]
    rows: dict[str, list[Row]] = field(default_factory=dict)
    failed: dict[str, Failures] = field(default_factory=lambda: {name: [] for name in TABLES})
    fresh: Counter[str] = field(default_factory=Counter)  # rows with figures of this run

    @property
    def failures(self) -> Failures:
        """All that failed or was not reached, table by table."""
        return [line for name in TABLES for line in self.failed[name]]

    @property
    def made(self) -> str:
        """When and on what this run's rows are made."""
        return made_of(self.hardware)

    def update(self, table: str, row: Row) -> None:
        """Take in a row, in the place of an earlier run's unless only that one has figures."""
        row = {**row, "made": self.made}
        found = has_figures(table, row)
        self.fresh[table] += found
        own = self.rows.setdefault(table, [])
        same = [i for i, r in enumerate(own) if all(r.get(k) == row.get(k) for k in KEYS)]
        if not same:
            own.append(row)
        elif found or not has_figures(table, own[same[0]]):
            own[same[0]] = row

    def unreached(self, table: str) -> set[str]:
        """Return the workloads that there was no time for."""
        return {line["workload"] for line in self.failed[table] if line["why"] == NOT_REACHED}

    def lacks(self) -> str:
        """Say in one line of which tables this run has failures and nothing else; empty if none."""
        found = []
        for name, title in TABLES.items():
            bad = [line for line in self.failed[name] if line["why"] != NOT_REACHED]
            if bad and not self.fresh[name]:
                first = "{workload}, {what}: {why}".format(**bad[0])
                found.append(f"{title} ({len(bad)} failed, the first: {first})")
        if not found:
            return ""
        return f"this run brought nothing for {'; '.join(found)}; the page has what there is"


def made_of(hardware: Mapping[str, str]) -> str:
    """Say when and on what rows are made, beyond what all rows of a page share."""
    return f"{hardware['date']}, driver {hardware['driver']}, {hardware['host']}"


def earlier(path: Path, described: dict[str, str]) -> Results:
    """Return what runs on the same accelerator wrote before."""
    if path.exists():
        known = json.loads(path.read_text())
        if same_hardware(known["hardware"], described):
            for row in (row for rows in known["rows"].values() for row in rows):
                row.setdefault("made", made_of(known["hardware"]))
            return Results(described, known["rows"])
    return Results(described)
