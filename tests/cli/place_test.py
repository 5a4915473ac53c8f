# SPDX-License-Identifier: Apache-2.0
"""place, simulate, verify and bounds: exit codes, documents, and plans that are not true."""

from __future__ import annotations

import json
import math
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import baechi
from tests.cli.conftest import CLUSTER
from tests.conftest import Run

METHODS = [
    *("auto", "refine", "all", "m-topo", "m-etf", "m-sct"),
    *("heft", "chain", "partition", "exact", "single", "balanced", "random"),
]


def test_optimize_tells_what_each_pass_did(run: Run, graph: Path, tmp_path: Path) -> None:
    small = tmp_path / "small.json"
    result = run("optimize", graph, "-c", CLUSTER, "--optimize", "fuse", "--json", "-o", small)
    document = json.loads(result.stdout)
    passes = document["passes"]
    assert [row["pass"] for row in passes] == ["colocate", "coplace", "fuse"]
    assert passes[0]["before"]["operators"] == 60
    assert all(row["cpu_time"] >= 0 for row in passes)
    assert sum(len(op["members"]) for op in document["operators"]) == 60
    names = [op["name"] for op in json.loads(small.read_text())["operators"]]
    assert names == [op["name"] for op in document["operators"]]
    placed = run("place", graph, "-c", CLUSTER, "-m", "m-etf", "--optimize", "fuse", "--json")
    after = [row["after"] for row in json.loads(placed.stdout)["passes"]]
    assert after == [row["after"] for row in passes]
    table = run("optimize", graph, "-c", CLUSTER)
    assert table.stdout.splitlines()[-1].startswith("forward")
    table = run("place", graph, "-c", CLUSTER, "-m", "m-etf", "--optimize", "colocate", "-v")
    assert "\ncolocate " in table.stdout


@pytest.mark.parametrize("method", METHODS)
def test_every_method_gives_a_plan_that_verifies(
    run: Run, graph: Path, tmp_path: Path, method: str
) -> None:
    result = run("place", graph, "-c", CLUSTER, "-m", method, "--budget", "10ms", "--json")
    document = json.loads(result.stdout)
    assert document["format"] == "baechi-plan"
    assert len(document["operators"]) == 60
    assert all(bound["value"] <= document["makespan"] for bound in document["bounds"])
    path = tmp_path / "plan.json"
    path.write_text(result.stdout)
    run("verify", graph, path)


def test_what_does_not_fit_says_how_much_and_what_would_do(run: Run, graph: Path) -> None:
    tight = ("place", graph, "-c", "2x10KiB", "--budget", "10ms", "--json")
    result = run(*tight, code=3, says="does not fit")
    assert "KiB" in result.stderr or "MiB" in result.stderr
    answer = json.loads(result.stdout)
    assert answer["fits"] is False
    assert answer["short_by"] > 0
    capacity = answer["smallest_equal_capacity"]
    run("place", graph, "-c", f"2x{capacity}B", "--budget", "10ms")


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--seed", "-1"),
        ("--seed", "99999999999999999999999"),
        ("--seed", "1.5"),
        ("--seed", ""),
        ("--threads", "0"),
        ("--threads", "1025"),
        ("--threads", "two"),
        ("--lp-threshold", "nan"),
        ("--lp-threshold", "0.6"),
        ("--lp-threshold", "-0.1"),
        ("--lp-threshold", "0.1x"),
    ],
)
def test_numbers_are_read_exactly(run: Run, graph: Path, option: str, value: str) -> None:
    run("place", graph, "-c", CLUSTER, option, value, code=2, says=option)


TIME = "a time from 0s to 1000000s, such as 500ms or 10s"
MATCHING = "'exact' has no effect with method m-etf: it is for auto, refine, all, m-sct or exact"


@pytest.mark.parametrize(
    ("arguments", "options", "sentence"),
    [
        (["--threads", "1025"], {"threads": 1025}, "expected a whole number from 1 to 1024, found"),
        (["--threads", "two"], {"threads": "two"}, "expected a whole number from 1 to 1024, found"),
        (["--threads", "1.0"], {"threads": 1.0}, "expected a whole number from 1 to 1024, found"),
        (["--seed", "-1"], {"seed": -1}, f"expected a whole number from 0 to {2**64 - 1}, found"),
        (["--seed", "true"], {"seed": True}, f"expected a whole number from 0 to {2**64 - 1}, fou"),
        (["--lp-threshold", "nan"], {"lp_threshold": math.nan}, "expected a number from 0 to 0.5,"),
        (
            ["--lp-threshold", "0.6"],
            {"lp_threshold": 0.6},
            "expected a number from 0 to 0.5, found",
        ),
        (["--budget", "3parsecs"], {"budget": "3parsecs"}, f"expected {TIME}, found '3parsecs'"),
        (["--budget", "-1s"], {"budget": -1}, f"expected {TIME}, found '-1s'"),
        (["--budget", "2000000s"], {"budget": 2_000_000}, f"expected {TIME}, found '2000000s'"),
        (["--lp", "guess"], {"lp": "guess"}, "expected one of matching, approx or exact, found"),
        (["--method", "magic"], {"method": "magic"}, "expected one of auto, refine, all, m-topo, "),
        (
            ["--method", "pipeline"],
            {"method": "pipeline"},
            "'pipeline' places steps of several micro-batches: say how many there are",
        ),
        (["--optimize", "most"], {"optimize": "most"}, "expected one of none, colocate, coplace, "),
        (["--lp", "exact", "-m", "m-etf"], {"lp": "exact", "method": "m-etf"}, MATCHING),
        (
            ["--coplacement", "neighbours", "-m", "single"],
            {"coplacement": "neighbours", "method": "single"},
            "'neighbours' has no effect with method single: it is for auto, refine, all, m-topo, ",
        ),
        (
            ["--tidy", "-m", "m-etf"],
            {"tidy": True, "method": "m-etf"},
            "'true' has no effect with method m-etf: it is for auto, refine, all or exact",
        ),
        (
            ["--tidy", "--paper"],
            {"tidy": True, "paper": True},
            "it is beyond the paper: leave out ",
        ),
        (["--expert", "", "-m", "expert"], {"method": "expert"}, "method expert needs a placement"),
    ],
)
def test_a_bad_option_gets_one_sentence_from_both_entrances(
    run: Run, graph: Path, arguments: list[str], options: dict[str, Any], sentence: str
) -> None:
    option = arguments[0]
    given = [a for a in arguments if a not in ("--expert", "")]
    place = ("place", graph, "-c", CLUSTER, *given)
    result = run(*place, code=2, says=f"{option}: {sentence}")
    with pytest.raises(baechi.InputError) as caught:
        baechi.place_graph(baechi.Graph.load(graph), CLUSTER, **options)
    name = option[2:].replace("-", "_")
    assert result.stderr == f"baechi: --{str(caught.value).replace(name, option[2:], 1)}\n"


def test_a_method_misspelt_says_which_one_was_meant(run: Run, graph: Path) -> None:
    words = "found 'M-EFT'; did you mean 'm-etf'?"
    run("place", graph, "-c", CLUSTER, "--method", "M-EFT", code=2, says=words)
    with pytest.raises(baechi.InputError, match="did you mean 'm-etf'"):
        baechi.place_graph(baechi.Graph.load(graph), CLUSTER, method="M-EFT")


@pytest.mark.parametrize("name", ["robust", "improvements", "objective"])
def test_an_option_that_is_gone_says_so(run: Run, graph: Path, name: str) -> None:
    run("place", graph, "-c", CLUSTER, f"--{name}", code=2, says=f"--{name} is no longer there: ")
    with pytest.raises(baechi.InputError, match=f"place_graph: {name} is no longer there: "):
        baechi.place_graph(baechi.Graph.load(graph), CLUSTER, **{name: 1})  # type: ignore[arg-type]


def test_an_unknown_option_says_which_one_was_meant(run: Run, graph: Path) -> None:
    words = "has no option '--seeed'; did you mean '--seed'?"
    run("place", graph, "-c", CLUSTER, "--seeed", "3", code=2, says=f"place {words}")
    with pytest.raises(baechi.InputError, match="has no option 'seeed'; did you mean 'seed'"):
        baechi.place_graph(baechi.Graph.load(graph), CLUSTER, seeed=3)  # type: ignore[call-arg]
    run("place", graph, "-c", CLUSTER, "--nothing=3", code=2, says="'--nothing'; there are --help")


@pytest.mark.parametrize("line", ["2x1GiB+", "+2x1GiB", "1x1GiB++1x2GiB", "+"])
def test_a_plus_has_devices_on_both_sides(run: Run, graph: Path, line: str) -> None:
    said = f"cluster '{line}': a '+' has devices on both sides"
    run("place", graph, "-c", line, code=2, says=said)


def test_the_largest_numbers_are_taken(run: Run, graph: Path) -> None:
    largest = ["--seed", str(2**64 - 1), "--lp-threshold", "0.5", "--threads", "2"]
    run("place", graph, "-c", CLUSTER, "-m", "random", *largest)


@pytest.mark.skipif(sys.platform == "win32", reason="needs a pseudo-terminal")
def test_a_terminal_sees_the_best_step_and_the_bound(command: str, graph: Path) -> None:
    import pty

    leader, follower = pty.openpty()
    arguments = [command, "place", str(graph), "-c", "2x1GiB", "--budget", "100s"]
    shown = ""
    with subprocess.Popen(arguments, stdout=subprocess.DEVNULL, stderr=follower) as process:
        os.close(follower)
        while "no plan is below" not in shown:
            shown += os.read(leader, 4096).decode()
        process.send_signal(signal.SIGINT)  # the best so far is the plan
        assert process.wait(timeout=60) == 0
    os.close(leader)
    assert re.search(r"placing \S+ \(\d+ s\): \S+ \w+ by \w", shown)


def test_an_expert_placement_is_followed(run: Run, graph: Path, tmp_path: Path) -> None:
    names = [entry["name"] for entry in json.loads(graph.read_text())["operators"]]
    devices = run("place", graph, "-c", CLUSTER, "-m", "m-topo", "--json").stdout
    device = json.loads(devices)["devices"][1]["name"]
    expert = tmp_path / "expert.json"

    def place(device_of: dict[str, str], **how: Any) -> subprocess.CompletedProcess[str]:
        document = {"format": "baechi-placement", "version": 1, "device_of": device_of}
        expert.write_text(json.dumps(document))
        command = ("place", graph, "-c", CLUSTER, "-m", "expert", "--expert", expert, "--json")
        return run(*command, **how)

    good = place(dict.fromkeys(names, device))
    assert {entry["device"] for entry in json.loads(good.stdout)["operators"]} == {device}
    place(dict.fromkeys(names[1:], device), code=2, says=f"'{names[0]}' is not placed")
    place(dict.fromkeys(names, "abacus"), code=2, says="the cluster has no device 'abacus'")
    place(dict.fromkeys([*names, "ghost"], device), code=2, says="no operator 'ghost'")
    run("place", graph, "-c", CLUSTER, "-m", "expert", code=2, says="needs a placement to follow")


def test_simulate_replays_here_and_elsewhere(run: Run, graph: Path, plan: Path) -> None:
    makespan = json.loads(plan.read_text())["makespan"]
    same = run("simulate", graph, plan, "--json")
    assert json.loads(same.stdout)["makespan"] == makespan
    slow = run("simulate", graph, plan, "-c", CLUSTER, "--link", "1s,1GB/s", "--json")
    assert json.loads(slow.stdout)["makespan"] > makespan
    run("simulate", graph, plan, "-c", "2x10KiB", code=3)
    run("simulate", graph, plan, "-c", "3x8GiB", code=2, says="the plan is for 2 devices")


@pytest.mark.parametrize("order", ["program", "none"])
def test_a_plan_is_made_for_the_order_that_runs_it(
    run: Run, graph: Path, plan: Path, tmp_path: Path, order: str
) -> None:
    path = tmp_path / "plan.json"
    options = ["-c", CLUSTER, "--order", order, "--budget", "50ms"]
    placed = run("place", graph, *options, "-o", path)
    words = {"program": " in program order by ", "none": " without an order by "}[order]
    assert words in placed.stdout.splitlines()[0]
    document = json.loads(path.read_text())
    assert document["order"] == order
    run("verify", graph, path)
    assert json.loads(run("explain", graph, path, "--json").stdout)["order"] == order

    def step(path: Path, *options: str) -> int:
        result = run("simulate", graph, path, "--json", *options)
        replay = json.loads(result.stdout)
        assert replay["order"] == order
        return int(replay["makespan"])

    assert step(path) == document["makespan"]
    assert step(path, "--order", order) == document["makespan"]
    assert step(plan, "--order", order) >= document["makespan"]
    page = tmp_path / "report.html"
    run("report", graph, plan, "--order", order, "-o", page)
    assert f'"order":"{order}"' in page.read_text().replace(" ", "")

    document["order"] = {"program": "none", "none": "program"}[order]
    path.write_text(json.dumps(document))
    wrong = run("verify", graph, path, code=None)
    assert wrong.returncode != 0
    assert "comes first" in wrong.stdout + wrong.stderr
    run(
        "place",
        graph,
        "-c",
        CLUSTER,
        "--order",
        "fast",
        code=2,
        says="--order: expected one of planned, program or none, found 'fast'",
    )


def test_bounds_are_the_plans_bounds(run: Run, graph: Path, plan: Path) -> None:
    result = run("bounds", graph, "-c", CLUSTER, "--json")
    bounds = {entry["name"]: entry["nanoseconds"] for entry in json.loads(result.stdout)["bounds"]}
    document = json.loads(plan.read_text())
    assert bounds == {entry["name"]: entry["value"] for entry in document["bounds"]}


def test_bounds_by_the_paper_tell_its_letters_and_promises(run: Run, tmp_path: Path) -> None:
    chain = tmp_path / "chain.json"
    run("generate", "chain", "--operators", "6", "-o", chain)
    ample = ["bounds", chain, "-c", "4x8GiB", "--comm", "parallel", "--paper"]
    said = json.loads(run(*ample, "--json").stdout)
    assert (said["n"], said["R"], said["applies"]) == (4, 4, True)
    assert said["promises"][0]["factor"] == 1.75  # 2 - 1/n
    assert "devices that never run short of memory" in run(*ample).stdout
    queues = json.loads(run(*ample[:-2], "sequential", "--paper", "--json").stdout)
    assert (queues["applies"], queues["promises"]) == (False, [])


def add_one(*keys: str | int) -> Callable[[dict[str, Any]], None]:
    def tamper(document: dict[str, Any]) -> None:
        value: Any = document
        for key in keys[:-1]:
            value = value[key]
        value[keys[-1]] += 1

    return tamper


def rename_graph(document: dict[str, Any]) -> None:
    document["graph"]["name"] = "another"


def change_memory_mode(document: dict[str, Any]) -> None:
    other = {"dataflow": "retain", "retain": "dataflow"}
    document["memory_mode"] = other[document["memory_mode"]]


def claim_a_shorter_step(document: dict[str, Any]) -> None:
    row = next(row for row in document["methods"] if row["method"] == document["method"])
    row["makespan"] -= 1


def python_verdict(graph: Path, plan: Path) -> list[str]:
    try:
        return baechi.verify(baechi.Plan.load(plan, baechi.Graph.load(graph)))
    except baechi.InputError as error:
        return [str(error)]


def name_another_operator_at_the_peak(document: dict[str, Any]) -> None:
    device = document["devices"][0]
    names = [row["name"] for row in document["operators"]]
    device["peak_operator"] = next(name for name in names if name != device["peak_operator"])


@pytest.mark.parametrize(
    ("tamper", "words"),
    [
        (add_one("devices", 0, "peak"), "peaks at "),
        (add_one("devices", 0, "peak_at"), "peaks first at "),
        (name_another_operator_at_the_peak, "peaks with operator "),
        (add_one("devices", 0, "busy"), "is busy for "),
        (add_one("devices", 0, "sent"), "' sends "),
        (add_one("devices", 1, "received"), "' receives "),
        (claim_a_shorter_step, "the row of method 'm-etf' claims a step of "),
        (rename_graph, "the plan is for the graph 'another', not for 'layered'"),
        (change_memory_mode, "the plan is for a graph with memory mode "),
    ],
)
def test_a_plan_that_claims_what_is_not_so_is_refused(
    run: Run,
    graph: Path,
    plan: Path,
    tmp_path: Path,
    tamper: Callable[[dict[str, Any]], None],
    words: str,
) -> None:
    document = json.loads(plan.read_text())
    tamper(document)
    path = tmp_path / "tampered.json"
    path.write_text(json.dumps(document))
    run("verify", graph, path, code=2, says=words)
    run("explain", graph, path, code=2, says=words)
    run("check", "--graph", graph, path, code=2, says=words)
    assert any(words in sentence for sentence in python_verdict(graph, path))
    with pytest.raises(baechi.InputError, match=re.escape(words)):
        baechi.explain(baechi.Plan.load(path, baechi.Graph.load(graph)))


def claim_a_small_device(document: dict[str, Any]) -> None:
    document["cluster"]["devices"][0]["capacity"] = document["devices"][0]["peak"] - 1


@pytest.mark.parametrize(
    ("tamper", "words"),
    [
        (add_one("devices", 0, "peak"), "peaks at "),
        (add_one("devices", 0, "busy"), "is busy for "),
        (claim_a_small_device, "1 bytes more than its capacity"),
    ],
)
def test_what_shows_a_wrong_plan_or_passes_it_on_says_so_in_a_line(
    run: Run,
    graph: Path,
    plan: Path,
    tmp_path: Path,
    tamper: Callable[[dict[str, Any]], None],
    words: str,
) -> None:
    document = json.loads(plan.read_text())
    tamper(document)
    path, out = tmp_path / "tampered.json", tmp_path / "out"
    path.write_text(json.dumps(document))
    for command in (
        ["report", graph, path, "-o", out],
        ["show", graph, path],
        ["trace", graph, path, "-o", out],
        ["export", graph, path, "--to", "csv", "-o", out],
        ["simulate", graph, path, "-o", out],
    ):
        said = run(*command, code=None)
        warning = f"baechi: warning: {path}: the plan is wrong: "
        lines = [line for line in said.stderr.splitlines() if line.startswith(warning)]
        assert len(lines) == 1, command
        assert words in lines[0]
        right = run(*[plan if each == path else each for each in command])
        assert "warning" not in right.stderr
    loaded = baechi.Plan.load(path, baechi.Graph.load(graph))
    for show in (baechi.report, baechi.trace):
        with pytest.warns(UserWarning, match=re.escape(words)):
            show(loaded, out)
    with pytest.warns(UserWarning, match=re.escape(words)):
        baechi.export_plan(loaded, "csv")


def test_no_command_takes_a_step_that_does_not_end_with_its_last_operator(
    run: Run, graph: Path, plan: Path, tmp_path: Path
) -> None:
    document = json.loads(plan.read_text())
    document["makespan"] += 1
    document.pop("gap", None)
    path = tmp_path / "tampered.json"
    path.write_text(json.dumps(document))
    for command in ["verify", "explain", "show", "trace", "simulate"]:
        run(command, graph, path, code=2, says="$.makespan: the plan claims a step of ")


def test_empty_paths_are_named(run: Run, graph: Path) -> None:
    for arguments in (
        ["info", ""],
        ["check", ""],
        ["convert", graph, "", "--to", "graph"],
        ["verify", graph, ""],
        ["place", graph, "-c", CLUSTER, "-o", ""],
        ["generate", "chain", "-o", ""],
    ):
        run(*arguments, code=2, says="the path is empty")


@pytest.mark.parametrize(
    "arguments",
    [
        ["gnmt", "--layers", "9999999"],
        ["gnmt", "--length", "999999999999999999"],
        ["llama", "--layers", "9223372036854775807"],
        ["transformer", "--layers", "100000"],
        ["layered", "--operators", "20000001"],
    ],
)
def test_a_graph_much_too_large_is_refused_at_once(run: Run, arguments: list[str]) -> None:
    run("generate", *arguments, "-o", "/nowhere/x.json", timeout=10, code=2, says="20000000")


def test_a_graph_without_a_name_may_change_its_file_name(
    run: Run, data: Path, tmp_path: Path
) -> None:
    before, after, plan = (tmp_path / name for name in ("one.json", "other.json", "plan.json"))
    before.write_bytes((data / "good" / "dnn_partitioning.json").read_bytes())
    run("place", before, "-c", "2xcpu:8GiB", "-m", "single", "-o", plan)
    before.rename(after)
    run("verify", after, plan)
    converted = tmp_path / "graph.json"
    run("convert", after, converted)
    run("verify", converted, plan)


@pytest.mark.parametrize("seed", ["-5", "18446744073709551616", "x"])
def test_generate_reads_its_numbers_exactly(run: Run, seed: str) -> None:
    run("generate", "layered", "--seed", seed, code=2, says="--seed")


GENERATE = ["generate", "gnmt", "--layers", "8", "--length", "2000", "-o", "/nowhere/x.json"]


def test_generate_stops_at_an_interrupt(command: str) -> None:
    # The interrupt may come before the handler is there: then the process just ends by it.
    with subprocess.Popen([command, *GENERATE], stderr=subprocess.PIPE, text=True) as process:
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(timeout=0.5)
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=10) == 130
        assert process.stderr is not None
        assert process.stderr.read() == "baechi: cancelled\n"


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals")
def test_an_inherited_ignored_interrupt_stays_ignored(command: str) -> None:
    def ignore() -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)

    arguments = [command, "generate", "gnmt", "--length", "300", "-o", "/nowhere/x.json"]
    with subprocess.Popen(
        arguments, stderr=subprocess.PIPE, text=True, preexec_fn=ignore
    ) as process:
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(timeout=0.2)
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=60) == 2  # there is no folder /nowhere


def test_slower_devices_beside_fast_ones_do_not_make_the_step_longer(
    run: Run, tmp_path: Path
) -> None:
    graph = tmp_path / "gnmt.json"
    run("generate", "gnmt", "--length", "6", "--layers", "2", "--batch", "128", "-o", graph)

    def step(cluster: str) -> float:
        links = ("--comm", "sequential", "--link", "134us,5.701254276GB/s", "--budget", "100ms")
        result = run("place", graph, "-c", cluster, *links, "--json")
        return float(json.loads(result.stdout)["makespan"])

    # The search alone came to 36 ms where the fast ones take 32.
    assert step("4x64GiB+4x64GiB@0.5+8x64GiB@0.2") <= step("4x64GiB")
