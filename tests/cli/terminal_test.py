# SPDX-License-Identifier: Apache-2.0
"""Names from files cannot steer the terminal that shows them; JSON has them as they are."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.conftest import Run

# Escape, bell, NUL, a C1 control sequence introducer, right-to-left override, isolate, line ends.
STEERING = "\x1b[2J\x07\x00\x9b31m\u202e\u2066\n\r\u2028"
NAMES = {
    "op": f"a{STEERING}",
    "other": f"b{STEERING}",
    "gpu": f"g{STEERING}",
    "cpu": f"c{STEERING}",
}


@pytest.fixture(scope="module")
def files(run: Run, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("steering")
    graph = {
        "format": "baechi-graph",
        "version": 1,
        "name": f"n{STEERING}",
        "operators": [
            {"name": NAMES["op"], "kind": f"k{STEERING}", "time": {"*": 1000}, "outputs": [64]},
            {
                "name": NAMES["other"],
                "time": {f"t{STEERING}": 10, "*": 900},
                "inputs": [NAMES["op"]],
            },
        ],
    }
    devices = [
        {"name": NAMES[name], "kind": f"t{STEERING}", "capacity": "1MiB"} for name in ("gpu", "cpu")
    ]
    links = [{"scope": "default", "latency": "1us", "channels": [f"w{STEERING}"]}]
    cluster = {"format": "baechi-cluster", "version": 1, "devices": devices, "links": links}
    paths = {name: folder / f"{name}.json" for name in ("graph", "cluster", "plan", "tight")}
    paths["graph"].write_text(json.dumps(graph))
    paths["cluster"].write_text(json.dumps(cluster))
    for device in devices:
        device["capacity"] = "10B"
    paths["tight"].write_text(json.dumps(cluster))
    run("place", paths["graph"], "-c", paths["cluster"], "-m", "balanced", "-o", paths["plan"])
    return paths


SUBCOMMANDS = [
    ["place", "graph", "-c", "cluster", "-m", "all", "--budget", "10ms"],
    ["place", "graph", "-c", "tight", "--budget", "10ms"],
    ["simulate", "graph", "plan"],
    ["simulate", "graph", "plan", "-c", "tight"],
    ["show", "graph", "plan"],
    ["show", "graph", "plan", "--ascii"],
    ["explain", "graph", "plan"],
    ["explain", "graph", "plan", "-c", "tight"],
    ["explain", "graph", "plan", "--op", NAMES["op"]],
    ["explain", "graph", "plan", "--op", "nobody"],
    ["info", "graph", "-c", "cluster"],
    ["check", "graph", "cluster", "plan"],
    ["verify", "graph", "plan"],
    ["bounds", "graph", "-c", "cluster"],
    ["optimize", "graph", "-c", "cluster"],
    ["what-if", "graph", "-c", "cluster", "-m", "m-etf"],
    ["min", "graph", "-c", "cluster", "-m", "m-etf"],
    ["min", "graph", "-c", "tight", "-m", "m-etf"],
    ["sensitivity", "graph", "-c", "cluster", "-m", "m-etf", "--samples", "2"],
]


@pytest.mark.parametrize(
    "arguments", SUBCOMMANDS, ids=lambda a: " ".join(a[:6]).encode("unicode_escape").decode()
)
def test_what_people_read_is_escaped(
    run: Run, files: dict[str, Path], arguments: list[str]
) -> None:
    called = [files.get(argument, argument) for argument in arguments]
    if any("\x00" in str(argument) for argument in called):
        called = [str(argument).replace("\x00", "") for argument in called]
    result = run(*called, code=None)
    assert result.returncode in (0, 2, 3), result.stderr
    shown = result.stdout + result.stderr
    assert shown
    steering = [c for c in STEERING if c != "\n" and not c.isprintable()]
    assert len(steering) == 8
    assert not any(character in shown for character in steering), ascii(shown)
    # A line end in a name does not start a line of its own.
    assert not any(line.startswith(("\r", "\\x0d")) for line in shown.split("\n"))


def test_json_keeps_names_as_they_are(run: Run, files: dict[str, Path]) -> None:
    document = json.loads(files["plan"].read_text())
    assert {row["name"] for row in document["operators"]} == {NAMES["op"], NAMES["other"]}
    shown = json.loads(run("show", files["graph"], files["plan"], "--json").stdout)
    assert [device["name"] for device in shown["devices"]] == [NAMES["gpu"], NAMES["cpu"]]
    table = run("simulate", files["graph"], files["plan"]).stdout
    assert r"g\x1b[2J\x07\x00\u009b31m\u202e\u2066\n\x0d\u2028" in table
