# SPDX-License-Identifier: Apache-2.0
"""Plans that keep tensors in a host's memory: the command, their files, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Run

CARD = ("--cluster", "1x7GiB", "--host", "64GiB", "--budget", "50ms")


@pytest.fixture(scope="module")
def llama(run: Run, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("llama") / "llama.json"
    run(
        "generate", "llama", "--training", "--variables", "--layers", "4", "--batch", "1",
        "--length", "1024", "--device", "gpu=rtx4090,host=cpu", "--precision", "bf16", "-o", path,
    )  # fmt: skip
    return path


@pytest.fixture(scope="module")
def plan(run: Run, llama: Path) -> Path:
    path = llama.with_name("plan.json")
    done = run("place", llama, *CARD, "--residency", "auto", "-o", path)
    assert "host:0 keeps" in done.stderr
    return path


def streamed(residency: Any) -> list[str]:
    """Return the updates that fetch what they change; new values and a put follow each of them."""
    readers = {r for away in residency["away"] for f in away["fetches"] for r in f["readers"]}
    return sorted(r for r in readers - {*residency["on_store"]} if r.startswith("optimizer/"))


def test_the_plan_has_its_fetches_and_is_right(run: Run, llama: Path, plan: Path) -> None:
    document = json.loads(plan.read_text())
    residency = document["residency"]
    fetches = sum(len(away["fetches"]) for away in residency["away"])
    assert residency["store"] == "host:0"
    assert residency["on_store"]
    more = len(document.get("recomputed", [])) + fetches + 2 * len(streamed(residency))
    assert len(document["operators"]) == document["graph"]["operators"] + more
    names = {o["name"]: o["device"] for o in document["operators"]}
    for update in streamed(residency):
        assert (names[f"{update}@new"], names[f"{update}@put"]) == (names[update], "host:0")
    assert document["devices"][0]["peak"] <= 7 * 2**30
    run("verify", llama, plan)
    simulated = run("simulate", llama, plan, "--json")
    assert json.loads(simulated.stdout)["makespan"] == document["makespan"]
    assert document["bounds"][0]["value"] <= document["makespan"]


def test_what_is_fetched_at_one_moment_is_simulated_in_the_plans_order(
    run: Run, tmp_path: Path
) -> None:
    graph, plan = tmp_path / "unet.json", tmp_path / "plan.json"
    kinds = ("--device", "gpu=rtx4090,host=cpu", "--precision", "bf16")
    run("generate", "unet", "--training", "--variables", *kinds, "-o", graph)
    for choice in ("auto", "all"):
        place = ("--host", "128GiB", "--residency", choice, "--budget", "50ms", "-o", plan)
        run("place", graph, "-c", "1x8GiB", "--link", "20us,12GB/s", *place)
        simulated = run("simulate", graph, plan, "--json")
        assert json.loads(simulated.stdout)["makespan"] == json.loads(plan.read_text())["makespan"]


def test_forged_fetches_are_found(run: Run, llama: Path, plan: Path) -> None:
    document = json.loads(plan.read_text())
    forged = plan.with_name("forged.json")
    fetch = next(o for o in document["operators"] if "@fetch" in o["name"] and o["start"] > 0)
    fetch["start"] = fetch["end"] = fetch["start"] - 1
    forged.write_text(json.dumps(document))
    early = run("verify", llama, forged, code=None)
    assert early.returncode not in (0, 1)
    assert fetch["name"] in early.stdout + early.stderr
    document = json.loads(plan.read_text())
    document["residency"]["on_store"].pop()
    forged.write_text(json.dumps(document))
    wrong = run("verify", llama, forged, code=2)
    assert "on the store" in wrong.stderr


@pytest.mark.parametrize("subcommand", ["explain", "report", "trace", "show"])
def test_such_plans_can_be_looked_at(run: Run, llama: Path, plan: Path, subcommand: str) -> None:
    out = ["-o", "-"] if subcommand in ("report", "trace") else []
    run(subcommand, llama, plan, *out)


def test_explain_says_what_is_fetched_when(run: Run, llama: Path, plan: Path) -> None:
    document = json.loads(plan.read_text())
    told = json.loads(run("explain", llama, plan, "--json").stdout)
    (link,) = told["host_links"]
    sent = [t for t in document["transfers"] if t["from"] == "host:0"]
    assert link["fetches"] == len(sent) == len(told["fetches"])
    assert link["fetching"] == sum(t["end"] - t["start"] for t in sent)
    assert link["fetched"] == sum(fetch["bytes"] for fetch in told["fetches"])
    starts = {o["name"]: o["start"] for o in document["operators"]}
    for fetch in told["fetches"]:
        assert fetch["end"] + fetch["early"] == starts[fetch["reader"]]
        assert "during" not in fetch or starts[fetch["during"]] <= fetch["start"]
    words = run("explain", llama, plan).stdout
    busy = round(100 * link["fetching"] / document["makespan"])
    assert f"for which the link is busy {busy}% of the step" in words
    assert " is fetched during " in words


def step_of(run: Run, llama: Path, memory: str, *more: str) -> int | None:
    done = run("place", llama, "--cluster", memory, *CARD[2:], "--json", *more, code=None)
    return json.loads(done.stdout)["makespan"] if done.returncode == 0 else None


def test_more_memory_is_no_slower_and_auto_no_slower_than_none(run: Run, llama: Path) -> None:
    steps = [
        step_of(run, llama, f"1x{size}GiB", "--residency", "auto") for size in (5, 7, 8, 10, 12, 40)
    ]
    assert None not in steps
    assert steps == sorted(steps, key=lambda step: -(step or 0))
    assert (steps[-1] or 0) <= (step_of(run, llama, "1x40GiB") or 0)
    assert step_of(run, llama, "1x7GiB") is None


# Fetches of two devices and updates share the order of one host.
@pytest.mark.parametrize(
    "cluster", ["1xgpu:4GiB+1xgpu:3GiB@0.5+1xhost:64GiB", "1x3GiB+1xhost:64GiB"]
)
def test_small_and_unequal_cards_get_a_plan_that_is_right(
    run: Run, llama: Path, cluster: str
) -> None:
    path = llama.with_name("small.json")
    options = ("--cluster", cluster, "--budget", "50ms", "--residency", "auto")
    run("place", llama, *options, "-o", path)
    run("verify", llama, path)


# Micro-batches share fetches, so four of them do not send four times as much.
@pytest.mark.parametrize(
    "cluster", ["1x7GiB+1xhost:64GiB", "1xgpu:6GiB+1xgpu:4GiB@0.5+1xhost:64GiB"]
)
def test_micro_batches_share_what_is_fetched(run: Run, llama: Path, cluster: str) -> None:
    path = llama.with_name("steps.json")
    common = ("--cluster", cluster, "--budget", "50ms", "--residency", "auto")
    run("place", llama, *common, "--micro-batches", "4", "-o", path)
    run("verify", llama, path)
    document = json.loads(path.read_text())
    fetches = [fetch for away in document["residency"]["away"] for fetch in away["fetches"]]
    assert max(len(fetch["readers"]) for fetch in fetches) >= 4
    store = next(i for i, d in enumerate(document["devices"]) if d["name"] == "host:0")
    numbers = [entry[0] for entry in document["runs"][store]]
    first = len(document["operators"])
    behind = first + len(fetches)
    puts = [behind + 2 * i + 1 for i in range(len(streamed(document["residency"])))]
    assert sorted(n for n in numbers if n >= first) == [*range(first, behind), *puts]
    simulated = run("simulate", llama, path, "--json")
    assert json.loads(simulated.stdout)["makespan"] == document["makespan"]
    assert document["bounds"][0]["value"] <= document["makespan"]
    once = run("place", llama, *common, "--json")
    assert document["makespan"] < 4 * json.loads(once.stdout)["makespan"]
    for subcommand in ("explain", "report", "trace", "show"):
        out = ["-o", "-"] if subcommand in ("report", "trace") else []
        run(subcommand, llama, path, *out)
    document["residency"]["away"][0]["fetches"][0]["readers"].pop()
    path.write_text(json.dumps(document))
    assert run("verify", llama, path, code=None).returncode not in (0, 1)


def test_where_nothing_fits_a_host_is_offered(run: Run, llama: Path) -> None:
    done = run("place", llama, "--cluster", "1x7GiB", "--budget", "50ms", "--json", code=3)
    answer = json.loads(done.stdout)
    assert answer["host_needs"] > 7 * 2**30
    there = step_of(run, llama, "1x7GiB", "--residency", "auto") or 0
    assert there <= answer["step_with_host"] < 1.2 * there
    assert "of a host's memory it fits" in done.stderr
    also = run("what-if", llama, "--cluster", "1x7GiB", "--only-these")
    assert "of a host's memory it fits" in also.stdout


def test_activations_alone_are_a_reason_to_offer_a_host(run: Run, llama: Path) -> None:
    path = llama.with_name("unet.json")
    run("generate", "unet", "--batch", "4", "--precision", "bf16", "--device", "gpu=rtx4090",
        "--training", "-o", path)  # fmt: skip
    done = run("place", path, "--cluster", "1x1500MiB", code=3)
    assert "of a host's memory it fits" in done.stderr


# What is away and what runs again are chosen together, unless second runs are refused.
def test_second_runs_beside_fetches(run: Run, llama: Path) -> None:
    path, unet = llama.with_name("both.json"), llama.with_name("unet_with_variables.json")
    run("generate", "unet", "--batch", "4", "--precision", "bf16", "--device",
        "gpu=rtx4090,host=cpu", "--training", "--variables", "-o", unet)  # fmt: skip
    common = ("--cluster", "1x2GiB", *CARD[2:])
    steps = {}
    for name, options in {
        "both": ("--residency", "auto", "-o", path),
        "away": ("--residency", "auto", "--recompute", "none"),
    }.items():
        done = run("place", unet, *common, "--json", *options)
        steps[name] = json.loads(done.stdout or path.read_text())["makespan"]
    assert steps["both"] < 0.5 * steps["away"]
    assert json.loads(path.read_text())["recomputed"]
    run("verify", unet, path)


# A plan of less memory is what a search begins with; one for other devices cannot be.
def test_a_search_begins_with_the_plan_of_less_memory(
    run: Run, llama: Path, plan: Path, tmp_path: Path
) -> None:
    more, step = tmp_path / "more.json", json.loads(plan.read_text())["makespan"]
    auto = ("--host", "64GiB", "--residency", "auto", "--budget", "1ms", "--expert", plan)
    run("place", llama, "--cluster", "1x9GiB", *auto, "-v", "-o", more)
    found = json.loads(more.read_text())
    assert found["makespan"] <= step
    expert = next(row for row in found["methods"] if row["method"] == "expert")
    assert expert["makespan"] == step
    run("verify", llama, more)
    run("place", llama, "--cluster", "1x4GiB", *auto, "-o", more)
    assert "expert" not in [row["method"] for row in json.loads(more.read_text())["methods"]]
    for cluster, file, reason in (
        ("2x7GiB", plan, "--expert: it is a plan for other devices"),
        ("1x9GiB", llama, 'expected "baechi-plan"'),
    ):
        wrong = run("place", llama, "--cluster", cluster, *auto[:-1], file, code=2)
        assert reason in wrong.stderr


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (("--cluster", "1x7GiB"), "--residency: the cluster has no memory to keep anything"),
        (("--cluster", "1x7GiB+2xhost:8GiB"), "--residency: the cluster has 2 hosts"),
        (
            ("--cluster", "1x7GiB+1xhost:8GiB", "--host", "8GiB"),
            "the cluster has the host 'host:0'",
        ),
        ((*CARD, "--order", "none"), "--residency: fetches are part of the planned order"),
        (("--cluster", "1x7GiB", "--host", "much"), "host memory much"),
    ],
)
def test_what_is_not_planned_is_refused(
    run: Run, llama: Path, options: tuple[str, ...], reason: str
) -> None:
    done = run("place", llama, *options, "--residency", "auto", code=2)
    assert reason in done.stderr


def test_a_host_that_is_too_small_is_said(run: Run, llama: Path) -> None:
    done = run(
        "place", llama, "--cluster", "1x5GiB", "--host", "4GiB", "--residency", "auto", code=3
    )
    assert "host 'host:0' lacks " in done.stderr
    done = run(
        "place", llama, "--cluster", "1x100MiB", "--host", "64GiB", "--residency", "auto", code=3
    )
    assert "device 'gpu:0' still lacks " in done.stderr


def test_updates_that_no_host_may_run_are_said_without_a_search(run: Run, tmp_path: Path) -> None:
    graph = tmp_path / "llama.json"
    run("generate", "llama", "--layers", "2", "--training", "--variables", "-o", graph)
    done = run(
        "place", graph, "--cluster", "1x2GiB", "--host", "64GiB", "--residency", "auto", code=3
    )
    assert "; no update has a time for kind 'host', so weights and optimizer" in done.stderr
