# SPDX-License-Identifier: Apache-2.0
"""show, trace and export: what they write, and what they refuse."""

from __future__ import annotations

import csv
import io
import json
import os
import subprocess
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Run

COMMUNICATION = ["sequential", "duplex", "parallel"]


@pytest.fixture(scope="module")
def graph(run: Run, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("pictures") / "graph.json"
    run("generate", "layered", "--operators", "80", "--seed", "5", "-o", path)
    return path


def place(run: Run, graph: Path, *options: str) -> Path:
    path = graph.parent / f"{'_'.join(options).replace('/', '_')}.plan.json"
    run("place", graph, "-c", "3x8GiB", "-m", "m-etf", *options, "-o", path)
    return path


@pytest.fixture(scope="module")
def plan(run: Run, graph: Path) -> Path:
    return place(run, graph)


def nanoseconds(microseconds: float) -> int:
    return round(microseconds * 1000)


def check_events(document: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """Check the rules of the Trace Event Format that viewers rely on; return events by phase."""
    assert document["displayTimeUnit"] == "ns"
    by_phase: dict[str, list[dict[str, Any]]] = defaultdict(list)
    named = set()
    last = 0.0
    for event in document["traceEvents"]:
        assert isinstance(event["name"], str)
        assert isinstance(event["pid"], int)
        assert isinstance(event["tid"], int)
        by_phase[event["ph"]].append(event)
        if event["ph"] == "M":
            assert last == 0.0, "metadata comes first"
            named.add((event["pid"], event["tid"], event["name"]))
            continue
        assert event["ts"] >= last
        last = event["ts"]
    assert set(by_phase) <= {"M", "X", "C", "s", "t", "f"}
    ends: dict[tuple[int, int], int] = defaultdict(int)
    for event in by_phase["X"]:  # slices of a thread do not overlap, and each thread has a name
        where = (event["pid"], event["tid"])
        assert event["dur"] >= 0
        assert nanoseconds(event["ts"]) >= ends[where], event
        ends[where] = nanoseconds(event["ts"] + event["dur"])
        assert (*where, "thread_name") in named
        assert (event["pid"], 0, "process_name") in named
    return by_phase


def check_flows(events: dict[str, list[dict[str, Any]]]) -> int:
    """Check that each flow is s, t, t, f in time, each inside a slice of its thread."""
    flows: dict[int, list[dict[str, Any]]] = defaultdict(list)
    for phase in "stf":
        for event in events[phase]:
            flows[event["id"]].append(event)
    slices = defaultdict(list)
    for event in events["X"]:
        slices[event["pid"], event["tid"]].append(
            (nanoseconds(event["ts"]), nanoseconds(event["ts"] + event["dur"]))
        )
    for steps in flows.values():
        assert [event["ph"] for event in steps] == ["s", "t", "t", "f"]
        assert len({(event["cat"], event["name"]) for event in steps}) == 1
        moments = [event["ts"] for event in steps]
        assert moments == sorted(moments)
        assert steps[-1]["bp"] == "e"
        for event in steps:
            at = nanoseconds(event["ts"])
            assert any(a <= at <= b for a, b in slices[event["pid"], event["tid"]]), event
    return len(flows)


@pytest.mark.parametrize("mode", COMMUNICATION)
def test_trace_is_the_plan_in_valid_events(run: Run, graph: Path, mode: str) -> None:
    path = place(run, graph, "--comm", mode)
    truth = json.loads(path.read_text())
    output = graph.parent / f"{mode}.trace.json"
    run("trace", graph, path, "-o", output)
    events = check_events(json.loads(output.read_text()))
    assert check_flows(events) == len(truth["transfers"])
    computed = {
        event["name"]: (event["pid"] - 1, nanoseconds(event["ts"]), nanoseconds(event["dur"]))
        for event in events["X"]
        if event["tid"] == 1
    }
    devices = [device["name"] for device in truth["cluster"]["devices"]]
    assert computed == {
        op["name"]: (devices.index(op["device"]), op["start"], op["end"] - op["start"])
        for op in truth["operators"]
    }
    moved = [event for event in events["X"] if event["cat"] == "transfer"]
    assert len(moved) == 2 * len(truth["transfers"])
    for number, device in enumerate(truth["devices"]):
        counts = [e["args"]["bytes"] for e in events["C"] if e["pid"] == number + 1]
        assert max(counts) == device["peak"]


def test_trace_shows_shared_channels(run: Run, graph: Path) -> None:
    cluster = graph.parent / "cluster.json"
    devices = [{"name": f"g{i}", "kind": "gpu", "capacity": "8GiB"} for i in range(3)]
    link = {"scope": "default", "latency": "5us", "bandwidth": "6GB/s", "channels": ["bus"]}
    document = {"format": "baechi-cluster", "version": 1, "devices": devices, "links": [link]}
    cluster.write_text(json.dumps(document))
    path = graph.parent / "bus.plan.json"
    run("place", graph, "-c", cluster, "-m", "random", "-o", path)
    events = check_events(json.loads(run("trace", graph, path).stdout))
    names = [event["args"].get("name") for event in events["M"]]
    assert "bus" in names
    moved = len(json.loads(path.read_text())["transfers"])
    assert moved > 0
    assert sum(event["pid"] == 4 for event in events["X"]) == moved


def test_perfetto_itself_loads_the_trace(run: Run, graph: Path, plan: Path) -> None:
    """Where Perfetto's trace processor is at hand; its Python package would download it."""
    processor = os.environ.get("BAECHI_TRACE_PROCESSOR")
    if processor is None:
        pytest.skip("set BAECHI_TRACE_PROCESSOR to Perfetto's trace_processor_shell")
    api = pytest.importorskip("perfetto.trace_processor")
    output = graph.parent / "perfetto.json"
    run("trace", graph, plan, "-o", output)
    config = api.TraceProcessorConfig(bin_path=processor)
    with api.TraceProcessor(trace=str(output), config=config) as loaded:
        truth = json.loads(plan.read_text())
        rows = list(loaded.query("select count(*) as n from slice"))
        assert rows[0].n == len(truth["operators"]) + 2 * len(truth["transfers"])
        rows = list(loaded.query("select count(*) as n from flow"))
        assert rows[0].n == 3 * len(truth["transfers"])


@pytest.mark.parametrize("width", [40, 80, 200])
def test_show_draws_within_the_width_and_without_colour_in_a_pipe(
    run: Run, graph: Path, plan: Path, width: int
) -> None:
    result = run("show", graph, plan, "--width", width)
    assert "\033" not in result.stdout
    lines = result.stdout.splitlines()
    assert all(len(line) <= width for line in lines[2:-1])
    assert sum("gpu:" in line for line in lines) == 3
    assert "█" in result.stdout
    ascii_only = run("show", graph, plan, "--width", width, "--ascii").stdout
    assert ascii_only.isascii()


def test_show_has_colours_when_asked_for(run: Run, graph: Path, plan: Path) -> None:
    assert "\033[34m" in run("show", graph, plan, "--color", "always").stdout


def test_show_on_a_terminal_keeps_to_it_and_to_no_color(
    command: str, graph: Path, plan: Path
) -> None:
    pty = pytest.importorskip("pty")
    termios = pytest.importorskip("termios")

    def shown(**extra: str) -> str:
        terminal, inside = pty.openpty()
        if hasattr(termios, "tcsetwinsize"):
            termios.tcsetwinsize(inside, (24, 70))
        environment = {key: value for key, value in os.environ.items() if key != "NO_COLOR"}
        with subprocess.Popen(
            [command, "show", str(graph), str(plan)], stdout=inside, env={**environment, **extra}
        ) as process:
            os.close(inside)
            text = b""
            while True:
                try:
                    part = os.read(terminal, 65536)
                except OSError:
                    break
                if not part:
                    break
                text += part
            assert process.wait() == 0
        os.close(terminal)
        return text.decode()

    assert "\033[" in shown()
    plain = shown(NO_COLOR="1")
    assert "\033[" not in plain
    if hasattr(termios, "tcsetwinsize"):
        assert all(len(line) <= 70 for line in plain.splitlines()[2:-1])


def test_show_as_json_has_the_numbers(run: Run, graph: Path, plan: Path) -> None:
    answer = json.loads(run("show", graph, plan, "--json", "--width", "50").stdout)
    truth = json.loads(plan.read_text())
    for shown, device in zip(answer["devices"], truth["devices"], strict=True):
        assert len(shown["computing_ns"]) == 50
        assert sum(shown["computing_ns"]) == device["busy"]
        assert max(shown["memory_bytes"]) == device["peak"]


def test_export_csv_has_every_operator(run: Run, graph: Path, plan: Path) -> None:
    result = run("export", graph, plan, "--to", "csv")
    rows = list(csv.DictReader(io.StringIO(result.stdout)))
    truth = json.loads(plan.read_text())["operators"]
    assert [(r["operator"], r["device"], int(r["start_ns"])) for r in rows] == [
        (op["name"], op["device"], op["start"]) for op in truth
    ]


def test_export_tensorflow_names_every_node(run: Run, graph: Path, plan: Path) -> None:
    answer = json.loads(run("export", graph, plan, "--to", "tensorflow").stdout)
    for op in json.loads(plan.read_text())["operators"]:
        number = op["device"].removeprefix("gpu:")
        assert answer[op["name"]] == f"/job:localhost/replica:0/task:0/device:GPU:{number}"


def test_export_tells_the_step_without_the_order(
    run: Run, graph: Path, plan: Path, tmp_path: Path
) -> None:
    output = tmp_path / "devices.json"
    to = ("--to", "tensorflow", "-o", output)
    words = run("export", graph, plan, *to)
    assert " without one, as a program runs it that takes the placement alone" in words.stderr
    told = json.loads(run("export", graph, plan, *to, "--json").stdout)
    replay = json.loads(run("simulate", graph, plan, "--order", "none", "--json").stdout)
    assert told == {
        "output": str(output),
        "format": "tensorflow",
        "order": "planned",
        "makespan": json.loads(plan.read_text())["makespan"],
        "makespan_without_order": replay["makespan"],
    }
    table = run("export", graph, plan, "--to", "csv")
    assert table.stderr == ""  # has the order


def test_export_of_a_model_of_layers(run: Run, tmp_path: Path) -> None:
    graph, plan = tmp_path / "llama.json", tmp_path / "plan.json"
    run("generate", "llama", "--layers", "8", "-o", graph)
    run("place", graph, "-c", "2x80GiB", "-m", "single", "-o", plan)
    answer = run("export", graph, plan, "--to", "vllm")
    assert answer.stdout == "VLLM_PP_LAYER_PARTITION=8\n"
    answer = run("export", graph, plan, "--to", "llama-cpp")
    assert answer.stdout == "--gpu-layers 9 --split-mode layer --tensor-split 9,0\n"
    assert json.loads(run("export", graph, plan, "--to", "device-map").stdout) == {"": 0}


@pytest.mark.parametrize("subcommand", ["show", "trace", "export"])
@pytest.mark.parametrize(
    ("words", "text"),
    [
        ("expected an object", "nonsense"),
        ('expected "baechi-plan"', '{"format": "baechi-graph", "version": 1}'),
        ('the field "version" is missing', '{"format": "baechi-plan"}'),
    ],
)
def test_malformed_plans_are_refused(
    run: Run, graph: Path, tmp_path: Path, subcommand: str, words: str, text: str
) -> None:
    path = tmp_path / "bad.json"
    path.write_text(text)
    options = ["--to", "csv"] if subcommand == "export" else []
    result = run(subcommand, graph, path, *options, code=2)
    assert result.stdout == ""
    assert "bad.json:1:" in result.stderr
    assert words in result.stderr
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["show", "--width", "39"], "--width: expected a whole number from 40 to 1000"),
        (["show", "--color", "sometimes"], "--color"),
        (["export"], "--to is required"),
        (["export", "--to", "excel"], "--to"),
        (["export", "--to", "dot"], "no longer there: 'svg' draws a plan"),
        (["export", "--to", "module-fqns"], "'torch-pipelining' has the form module-fqns"),
        (["export", "--to", "csv", "--form", "schedule"], "form: 'csv' has no forms"),
        (["export", "--to", "torch-pipelining", "--form", "csv"], "expected one of schedule, "),
        (["export", "--to", "torch-pipelining", "--form", "split-spec"], "numbered layer"),
        (["export", "--to", "vllm"], "numbered layer"),
        (["trace", "-o", ""], "the path is empty"),
    ],
)
def test_wrong_use_is_refused(
    run: Run, graph: Path, plan: Path, arguments: list[str], words: str
) -> None:
    subcommand, *options = arguments
    run(subcommand, graph, plan, *options, code=2, says=words)
