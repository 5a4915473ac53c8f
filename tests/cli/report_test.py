# SPDX-License-Identifier: Apache-2.0
"""report: what it writes, and what it refuses."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.conftest import Run


@pytest.fixture(scope="module")
def folder(run: Run, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A graph, two plans of it, and a plan of another graph."""
    folder = tmp_path_factory.mktemp("report")
    for name, count in [("graph", "60"), ("other", "61")]:
        arguments = ["generate", "layered", "--operators", count, "--seed", "3"]
        run(*arguments, "-o", folder / f"{name}.json")
    for graph, method, name in [
        ("graph", "m-etf", "a"),
        ("graph", "m-topo", "b"),
        ("other", "m-etf", "of_other"),
    ]:
        run(
            "place", folder / f"{graph}.json", "-c", "2x8GiB", "-m", method, "-o",
            folder / f"{name}.plan.json",
        )  # fmt: skip
    return folder


def data_of(page: str) -> dict[str, object]:
    """Return the data inside a page."""
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    assert found
    answer = json.loads(found.group(1))
    assert isinstance(answer, dict)
    return answer


def test_report_writes_one_page_and_says_where(run: Run, folder: Path) -> None:
    page = folder / "report.html"
    result = run("report", folder / "graph.json", folder / "a.plan.json", "-o", page)
    assert result.stdout == ""
    assert str(page) in result.stderr
    data = data_of(page.read_text())
    assert isinstance(data["plans"], list)
    plan = data["plans"][0]
    truth = json.loads((folder / "a.plan.json").read_text())
    assert plan["makespan"] == truth["makespan"]
    assert plan["label"] == str(folder / "a.plan.json")
    assert sum(len(device["bars"]["time"]) for device in plan["devices"]) == 60
    assert len(plan["transfers"]["time"]) == len(truth["transfers"])
    assert [d["peak"] for d in plan["devices"]] == [d["peak"] for d in truth["devices"]]
    assert [d["peak_at"] for d in plan["devices"]] == [d["peak_at"] for d in truth["devices"]]
    assert plan["broken"] == []
    assert sum(link[2] for link in plan["critical_path"]) == truth["makespan"]


def test_equal_input_gives_equal_bytes(run: Run, folder: Path) -> None:
    arguments = ["report", folder / "graph.json", folder / "a.plan.json", "-o", "-"]
    first, second = run(*arguments), run(*arguments)
    assert first.stdout == second.stdout
    assert first.stdout.startswith("<!doctype html>")


def test_two_plans_beside_each_other(run: Run, folder: Path) -> None:
    plans = [folder / "a.plan.json", folder / "b.plan.json"]
    result = run(
        "report", folder / "graph.json", *plans, "-o", folder / "two.html", "--json"
    )  # fmt: skip
    answer = json.loads(result.stdout)
    assert answer["plans"] == 2
    page = (folder / "two.html").read_text()
    assert answer["bytes"] == len(page.encode())
    assert len(data_of(page)["plans"]) == 2  # type: ignore[arg-type]


def test_place_writes_a_report_too(run: Run, folder: Path) -> None:
    page = folder / "placed.html"
    result = run("place", folder / "graph.json", "-c", "2x8GiB", "-m", "m-etf", "--report", page)
    assert "step " in result.stdout
    assert data_of(page.read_text())["plans"]


def test_a_plan_that_breaks_a_rule_is_shown_with_a_warning(run: Run, folder: Path) -> None:
    plan = json.loads((folder / "a.plan.json").read_text())
    plan["transfers"] = plan["transfers"][1:]
    broken = folder / "broken.plan.json"
    broken.write_text(json.dumps(plan))
    result = run("report", folder / "graph.json", broken, "-o", "-")
    assert data_of(result.stdout)["plans"][0]["broken"]  # type: ignore[index]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["graph.json", "of_other.plan.json", "-o", "x.html"], "of_other.plan.json"),
        (["graph.json", "missing.json", "-o", "x.html"], "missing.json"),
        (["missing.json", "a.plan.json", "-o", "x.html"], "missing.json"),
        (["graph.json", "graph.json", "-o", "x.html"], "graph.json:2:12"),
        (["graph.json", "a.plan.json"], "--output is required"),
        (["graph.json", "-o", "x.html"], "plan"),
        (["graph.json", "a.plan.json", "-o", ""], "the path is empty"),
        (["graph.json", "a.plan.json", "-o", "no/such/folder/x.html"], "no/such/folder/x.html"),
        (["graph.json", "a.plan.json", "-o", "-", "--json"], "both want standard output"),
        (["graph.json", *["a.plan.json"] * 3, "-o", "x.html"], "report"),
    ],
)
def test_what_it_refuses(run: Run, folder: Path, arguments: list[str], words: str) -> None:
    placed = [
        str(folder / word) if word.endswith((".json", ".html")) else word for word in arguments
    ]
    run("report", *placed, code=2, says=words)
    assert not (folder / "x.html").exists()
