# SPDX-License-Identifier: Apache-2.0
"""convert and check, by exit code and output."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests.conftest import Run

GRAPHS = [
    "graph_small.json",
    "graph_forward_references.json",
    "dnn_partitioning.json",
]


@pytest.mark.parametrize("name", GRAPHS)
def test_convert_writes_what_it_reads_back_unchanged(
    run: Run, data: Path, tmp_path: Path, name: str
) -> None:
    first, second = tmp_path / "first.json", tmp_path / "second.json"
    run("convert", data / "good" / name, first)
    run("convert", first, second)
    assert first.read_bytes() == second.read_bytes()


def test_convert_by_extension_and_by_option(run: Run, data: Path, tmp_path: Path) -> None:
    graph = data / "good" / "graph_small.json"
    run("convert", graph, tmp_path / "g.json")
    assert run("convert", graph, "-", "--to", "graph").stdout == (tmp_path / "g.json").read_text()
    gone = run("convert", graph, tmp_path / "g.dot", code=2)
    assert "DOT is no longer written: `baechi export --to svg` draws a plan" in gone.stderr
    result = run("convert", graph, tmp_path / "g.png", code=2)
    assert result.stdout == ""
    assert "cannot tell the format" in result.stderr
    assert not (tmp_path / "g.png").exists()


def test_convert_reads_standard_input(run: Run, data: Path) -> None:
    graph = data / "good" / "graph_small.json"
    result = run("convert", "-", "-", stdin=graph.read_text())
    assert result.stdout == run("convert", graph, "-").stdout


def test_convert_says_in_json_what_it_wrote(run: Run, data: Path, tmp_path: Path) -> None:
    output = tmp_path / "g.json"
    result = run("convert", data / "good" / "graph_small.json", output, "--json")
    assert json.loads(result.stdout) == {
        "output": str(output),
        "format": "graph",
        "operators": 7,
        "bytes": output.stat().st_size,
    }


def test_cluster_line_becomes_a_cluster_file(run: Run) -> None:
    result = run("convert", "--to", "cluster", "1x24GiB+2xcpu:8GB@0.6", "-")
    cluster = json.loads(result.stdout)
    assert [device["name"] for device in cluster["devices"]] == ["gpu:0", "cpu:0", "cpu:1"]
    assert cluster["devices"][1] == {
        "name": "cpu:0",
        "kind": "cpu",
        "capacity": "8GB",
        "speed": 0.6,
    }


def test_check_json_lists_every_file(run: Run, data: Path) -> None:
    good, bad = data / "good" / "cluster_two_hosts.json", data / "bad" / "nan.json"
    result = run("check", "--json", good, bad, code=2)
    files = json.loads(result.stdout)["files"]
    assert files[0] == {"file": str(good), "valid": True, "content": "cluster, 4 devices"}
    assert files[1]["valid"] is False
    assert files[1]["error"] in result.stderr


def test_check_holds_a_plan_against_its_graph(run: Run, tmp_path: Path) -> None:
    graph, plan = tmp_path / "g.json", tmp_path / "p.json"
    operators = [
        {"name": "a", "time": 10, "outputs": [1, 1]},
        {"name": "b", "time": 1, "inputs": ["a", ["a", 1]]},
    ]
    document = {"format": "baechi-graph", "version": 1, "operators": operators}
    graph.write_text(json.dumps(document))
    run("place", graph, "-c", "2x8GiB", "-m", "balanced", "-o", plan)
    run("check", "--graph", graph, plan)
    del operators[1]["inputs"]
    del operators[0]["outputs"]
    graph.write_text(json.dumps(document))
    result = run("check", "--graph", graph, plan, code=2)
    assert "operator 'a' has no output" in result.stderr


def test_info_knows_the_graph_and_the_cluster(run: Run, data: Path) -> None:
    graph = data / "good" / "graph_small.json"
    arguments = ["info", graph, "--cluster", "2xgpu:8GiB+1xcpu:1GiB", "--link", "1us,1GB/s"]
    facts = json.loads(run(*arguments, "--json").stdout)
    assert facts["graph"]["operators"] == 7
    assert facts["graph"]["critical_path_ns"] == 67_500
    assert facts["graph"]["permanent_bytes"] == 12 << 20
    assert facts["graph"]["largest_operator"] == "fc1"
    assert facts["cluster"]["total_capacity_bytes"] == 17 << 30
    assert facts["cluster"]["rho"] is None  # an operator that takes no time
    table = dict(line.split(maxsplit=1) for line in run(*arguments).stdout.splitlines())
    assert table["operators"] == "7 (3 backward)"
    assert table["devices"] == "3"
    assert "cluster" not in json.loads(run("info", graph, "--json").stdout)


def test_info_of_a_pinned_operator_without_its_device_is_bad_input(run: Run, data: Path) -> None:
    result = run("info", data / "good" / "graph_small.json", "-c", "1xtpu:8GiB", code=2)
    assert "gpu:0" in result.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ["nonsense"],
        ["check"],
        ["convert", "one"],
        ["convert", "a", "b", "c"],
        ["check", "x", "--bogus"],
        ["convert", "a", "b", "--to", "png"],
        ["check", "no/such/file"],
    ],
    ids=" ".join,
)
def test_wrong_use_is_exit_code_2_and_one_line(run: Run, arguments: list[str]) -> None:
    result = run(*arguments, code=2)
    assert result.stdout == ""
    assert result.stderr.startswith("baechi: ")
    assert result.stderr.count("\n") == 1


def test_a_full_disk_is_noticed(command: str, data: Path) -> None:
    with Path("/dev/full").open("w") as full:
        result = subprocess.run(
            [command, "convert", str(data / "good" / "graph_small.json"), "-"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
        )
    assert result.returncode == 2
    assert "standard output: cannot write: No space left on device" in result.stderr


def test_every_subcommand_has_help_with_examples_and_json(run: Run) -> None:
    listing = run("--help").stdout.split("Subcommands:")[1].split("Exit codes")[0]
    names = [
        line.split()[0] for line in listing.splitlines() if line.startswith("  ") and line[2] != " "
    ]
    assert {"info", "check", "convert"} <= set(names)
    for name in names:
        result = run(name, "--help")
        assert "Examples:" in result.stdout, name
        assert f"baechi {name}" in result.stdout.split("Examples:")[1], name
        assert "--json" in result.stdout, name
