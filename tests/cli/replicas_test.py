# SPDX-License-Identifier: Apache-2.0
"""Replicas of a placement: plans, their files, and what is said of bad input."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import baechi
from tests.conftest import Run

DEVICES = ("--cluster", "4x32GiB", "--link", "10us,200GB/s", "--budget", "50ms")


@pytest.fixture(scope="module")
def llama(run: Run, tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("replicas") / "llama.json"
    run(
        "generate",
        "llama",
        "--layers",
        "3",
        "--batch",
        "1",
        "--training",
        "--variables",
        "-o",
        file,
    )
    return file


@pytest.fixture(scope="module", params=["2", "4"])  # of two micro-batches each, and of one
def plan(run: Run, llama: Path, request: pytest.FixtureRequest) -> Path:
    file = llama.with_name(f"plan{request.param}.json")
    replicas = ("--micro-batches", "4", "--replicas", request.param)
    run("place", llama, *DEVICES, *replicas, "-o", file)
    return file


def test_verify_and_simulate_say_what_the_plan_says(run: Run, llama: Path, plan: Path) -> None:
    document = json.loads(plan.read_text())
    assert document["replicas"]["count"] * document.get("micro_batches", 1) == 4
    run("verify", llama, plan)
    simulated = run("simulate", llama, plan, "--json")
    assert json.loads(simulated.stdout)["makespan"] == document["makespan"]
    read = baechi.Plan.load(plan, baechi.Graph.load(llama))
    assert read.replicas == document["replicas"]["count"]
    assert read.to_json() == plan.read_text()
    assert not baechi.verify(read)


@pytest.mark.parametrize("subcommand", ["explain", "report", "trace", "show"])
def test_plans_of_replicas_can_be_looked_at(
    run: Run, llama: Path, plan: Path, subcommand: str, tmp_path: Path
) -> None:
    output = () if subcommand in ("explain", "show") else ("-o", tmp_path / "output")
    run(subcommand, llama, plan, *output)


def test_a_tensor_in_two_buckets_is_found(
    run: Run, llama: Path, plan: Path, tmp_path: Path
) -> None:
    document = json.loads(plan.read_text())
    other = tmp_path / "other.json"
    buckets = document["replicas"]["buckets"]
    buckets[0][0] = buckets[1][0]
    other.write_text(json.dumps(document))
    done = run("verify", llama, other, code=2)
    assert "is in two buckets" in done.stderr


def test_auto_is_never_worse_than_one(run: Run, llama: Path) -> None:
    steps = []
    for replicas in ((), ("--replicas", "auto"), ("--replicas", "1")):
        done = run("place", llama, *DEVICES, "--micro-batches", "4", *replicas, "--json")
        steps.append(json.loads(done.stdout)["makespan"])
    assert steps[1] <= steps[0] == steps[2]


def test_auto_is_as_good_as_the_best_number(run: Run, llama: Path) -> None:
    devices = ("--cluster", "16x32GiB", "--link", "10us,50GB/s", "--budget", "50ms")

    def step(replicas: str) -> int:
        options = ("--micro-batches", "16", "--replicas", replicas, "--json")
        done = run("place", llama, *devices, *options)
        makespan = json.loads(done.stdout)["makespan"]
        assert isinstance(makespan, int)
        return makespan

    assert step("auto") <= 1.005 * min(step(number) for number in ("1", "2", "4", "8", "16"))


def test_auto_keeps_what_other_methods_find(run: Run, tmp_path: Path) -> None:
    """Where links are slow or memory is short, the method for large steps finds little."""
    graph = tmp_path / "unet.json"
    model = ("unet", "--batch", "2", "--training", "--variables")
    run("generate", *model, "--device", "gpu=a100", "--precision", "bf16", "-o", graph)

    def step(cluster: str, link: str, *replicas: str) -> int:
        devices = ("--cluster", cluster, "--link", link, "--micro-batches", "16")
        done = run("place", graph, *devices, *replicas, "--json")
        return int(json.loads(done.stdout)["makespan"])

    slow = ("8x16GiB", "10us,100MB/s")
    assert step(*slow, "--replicas", "auto") <= step(*slow)
    short = ("4x1500MiB", "10us,2GB/s")
    assert step(*short, "--replicas", "auto") <= 1.1 * step(*short, "--replicas", "2")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--replicas", "3", "--micro-batches", "4"), "3 does not divide the number of micro-b"),
        (("--replicas", "8", "--micro-batches", "8"), "8 replicas need as many devices, and the"),
        (("--replicas", "2"), "2 does not divide the number of micro-batches, 1"),
        (("--replicas", "auto"), "replicas share micro-batches: ask for several"),
        (("--replicas", "0", "--micro-batches", "4"), "expected auto or whole numbers from 1 to"),
        (
            ("--replicas", "2", "--micro-batches", "4", "--host", "8GiB", "--residency", "auto"),
            "replicas keep nothing in a host's memory",
        ),
        (
            ("--replicas", "2", "--micro-batches", "4", "--order", "none"),
            "a step of micro-batches runs in its planned order",
        ),
    ],
)
def test_what_cannot_be_is_said_in_one_line(
    run: Run, llama: Path, options: tuple[str, ...], words: str
) -> None:
    run("place", llama, *DEVICES, *options, code=2, says=words)


def test_bounds_are_said_to_be_of_as_many_replicas(run: Run, llama: Path, plan: Path) -> None:
    count = json.loads(plan.read_text())["replicas"]["count"]
    assert f" with {count} replicas" in run("explain", llama, plan).stdout
    assert f"best possible with {count} replicas (" in run("show", llama, plan).stdout
    done = run("explain", llama, plan, "--op", "optimizer/norm#1", code=2)
    assert "an operator of replicas moves with its copies" in done.stderr


def test_formats_that_know_an_operator_once_refuse(run: Run, llama: Path, plan: Path) -> None:
    done = run("export", llama, plan, "--to", "device-map", code=2)
    assert "cannot tell of replicas" in done.stderr
