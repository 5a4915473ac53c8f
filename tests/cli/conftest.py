# SPDX-License-Identifier: Apache-2.0
"""A graph and a plan of it, for the tests of what is done with plans."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.conftest import Run

CLUSTER = "2x8GiB"


@pytest.fixture(scope="module")
def graph(run: Run, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("graph") / "graph.json"
    run("generate", "layered", "--operators", "60", "--seed", "3", "-o", path)
    return path


@pytest.fixture(scope="module")
def plan(run: Run, graph: Path) -> Path:
    """A plan of m-etf that uses both devices."""
    path = graph.parent / "plan.json"
    run("place", graph, "-c", CLUSTER, "-m", "m-etf", "-o", path)
    assert json.loads(path.read_text())["transfers"]
    return path
