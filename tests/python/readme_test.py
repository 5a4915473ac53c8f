# SPDX-License-Identifier: Apache-2.0
"""The README's chart is what the raw values of its pages say."""

from __future__ import annotations

import csv
import re
from pathlib import Path

import pytest

COLUMNS = 8  # of a bar that is as long as baechi's


def _rows(page: Path) -> list[dict[str, str]]:
    with page.open(newline="", encoding="utf-8") as lines:
        return list(csv.DictReader(lines))


def test_the_chart_is_what_the_pages_say(root: Path) -> None:
    results = root / "docs" / "lab" / "results"
    wanted: dict[tuple[str, str], float] = {}
    names = {'accelerate, "auto"': "device_map", "equal layers": "equal layers"}
    for row in _rows(results / "peers.csv"):
        if row["table"].startswith("Generated") and row["placer"] in names and row["over auto"]:
            model = row["workload"].partition(",")[0]
            wanted[model, names[row["placer"]]] = float(row["over auto"])
    for row in _rows(results / "pipelines.csv"):
        kind = row["table"], row["devices"], row["micro_batches"]
        if kind == ("Steps", "4 equal, PCIe", "8"):
            wanted[row["workload"].partition(",")[0], "pipeline"] = float(row["equal"])
    lines = re.findall(
        r"^([\w-]*) +(\w+ ?\w*) +(█+) (\d\.\d)x$", (root / "README.md").read_text(), re.M
    )
    assert len(lines) == 12
    model = ""
    for name, how, bar, factor in lines:
        model = name or model
        assert float(factor) == pytest.approx(wanted[model, how.strip()], abs=0.051)
        assert len(bar) == round(COLUMNS * wanted[model, how.strip()])
