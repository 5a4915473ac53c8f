# SPDX-License-Identifier: Apache-2.0
"""The tables of the accelerator's page, from its rows; under each the errors to be explained."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

from experiments.page import (
    Column,
    Table,
    count,
    gigabytes,
    mebibytes,
    microseconds,
    milliseconds,
    percent,
)

NAMES = ("workload", "devices", "method")
WAYS = ("unplaced", "placed")  # of running a model on one device
LARGE = 0.15  # an error beyond this is listed
BUSY_HOST = 0.9  # of the step: the accelerator waited for the host

SUMMARY = """\
A step is a forward and a backward without an optimizer, from idle devices until they are idle
again; the median of up to ten. *Predicted* is made of calls measured one by one on the same
device. *Started after*: the share of the step after which the host had started all of it. Near
100% the accelerator waited for the host, and no prediction from kernels alone can be right."""

Rows: TypeAlias = dict[str, list[dict[str, Any]]]


def to_explain(rows: Iterable[Mapping[str, Any]], keys: Iterable[str]) -> str:
    """Return one line for each error that is large, with what the rows themselves say of it."""
    lines = []
    for row in rows:
        for key in keys:
            error = row.get(key)
            if error is None or abs(error) <= LARGE:
                continue
            where = ", ".join(str(row[k]) for k in NAMES if row.get(k) is not None)
            lines.append(f"- {where}: {key} {error:+.0%}; {_reason(row, key)}")
    if not lines:
        return f"No error is above {LARGE:.0%}."
    return "\n".join([f"Errors above {LARGE:.0%}:", "", *lines])


def _reason(row: Mapping[str, Any], key: str) -> str:
    name = key.removesuffix("error").strip()
    submitted = row.get(f"{name} submitted")
    if name.endswith("peak"):
        return "not explained; kernels' own workspaces and temporaries are not predicted"
    if submitted is not None and submitted > BUSY_HOST:
        return f"the host had started all of it only after {submitted:.0%} of the step"
    return "not explained yet"


NAMED = [Column("workload", "model")]
SPREAD = [*NAMED, Column("devices", "devices"), Column("method", "method")]


def steps(rows: list[dict[str, Any]]) -> Table:
    """Predicted and measured on one device."""
    return Table(
        "Step time on one device",
        [
            *NAMED,
            Column("sizes", "sizes"),
            Column("operators", "operators", count),
            Column("predicted", "predicted", milliseconds),
            *(
                column
                for way in WAYS
                for column in (
                    Column(way, way, milliseconds),
                    Column(f"{way} error", "error", percent),
                    Column(f"{way} submitted", "started after", percent),
                )
            ),
        ],
        rows,
        "Milliseconds.",
        to_explain(rows, [f"{way} error" for way in WAYS]),
    )


def peaks(title: str, rows: list[dict[str, Any]], columns: list[Column]) -> Table:
    """Predicted and measured memory."""
    found = [row for row in rows if "peak" in row]
    return Table(
        title,
        [
            *columns,
            Column("predicted peak", "predicted", mebibytes),
            Column("peak", "measured", mebibytes),
            Column("peak error", "error", percent),
            Column("held", "held beside it", mebibytes),
        ],
        found,
        "MiB, of `torch.accelerator.max_memory_allocated`. *Held beside it* is what stays "
        "allocated between steps beyond weights and inputs, libraries' workspaces above all; "
        "*measured* is without that. Of several devices the one that is furthest off.",
        to_explain(found, ["peak error"]),
    )


def spread(rows: list[dict[str, Any]]) -> Table:
    """Several accelerators."""
    return Table(
        "Step time over several devices",
        [
            *SPREAD,
            Column("transfers", "tensors sent"),
            Column("predicted", "predicted", milliseconds),
            Column("one", "one device, measured", milliseconds),
            Column("placed", "measured", milliseconds),
            Column("placed error", "error", percent),
        ],
        rows,
        "Milliseconds.",
        to_explain(rows, ["placed error"]),
    )


def links(rows: list[dict[str, Any]]) -> Table:
    """Calibrated lines."""
    return Table(
        "Links",
        [
            Column("from", "from"),
            Column("to", "to"),
            Column("latency", "latency, us", microseconds),
            Column("bandwidth", "bandwidth, GB/s", gigabytes),
            Column("error", "median size is off by", percent),
        ],
        rows,
        "As `baechi calibrate --torch` measures them (docs/how_to/calibrate.md), with the host as "
        "a device.",
    )


def tables(rows: Rows, failures: list[dict[str, str]]) -> list[Table]:
    """All tables that there are rows for."""
    models, several = rows["models"], rows["spread"]
    found = []
    if models:
        found += [steps(models), peaks("Peaks on one device", models, NAMED)]
    if several:
        found += [spread(several), peaks("Peaks over several devices", several, SPREAD)]
    found.append(links(rows["links"]))
    if failures:
        columns = [Column(key, key) for key in ("workload", "what", "why")]
        found.append(Table("What did not run", columns, list(failures)))
    return found
