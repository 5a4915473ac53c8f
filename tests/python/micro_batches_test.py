# SPDX-License-Identifier: Apache-2.0
"""Steps of micro-batches from Python: the same plans as the command's, and their files."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest

import baechi


@pytest.fixture(scope="module")
def sizes() -> list[baechi.Graph]:
    """A small model at two batch sizes."""
    return [baechi.generate("llama", layers=4, batch=batch) for batch in (1, 8)]


@pytest.fixture(scope="module")
def cluster() -> baechi.Cluster:
    """Four devices with fast links."""
    return baechi.Cluster("4x24GiB", link="10us,200GB/s")


@pytest.fixture(scope="module")
def plan(sizes: list[baechi.Graph], cluster: baechi.Cluster) -> baechi.Plan:
    """The model's plan for eight micro-batches."""
    return baechi.place_graph(sizes[0], cluster, micro_batches=8, budget=0.05)


def test_a_plan_of_micro_batches_is_about_all_their_operators(
    sizes: list[baechi.Graph], plan: baechi.Plan
) -> None:
    assert plan.micro_batches == 8
    assert plan.micro_batch_graph == sizes[0]
    for name in sizes[0].names:
        copies = [copy for copy in (name, *(f"{name}@{m}" for m in range(8))) if copy in plan.graph]
        assert len({plan.device_of[copy] for copy in copies}) == 1, name
    assert baechi.verify(plan) == []


def test_saved_and_pickled_plans_are_the_same(
    sizes: list[baechi.Graph], plan: baechi.Plan, tmp_path: Path
) -> None:
    file = tmp_path / "plan.json"
    plan.save(file)
    for again in (baechi.Plan.load(file, sizes[0]), pickle.loads(pickle.dumps(plan))):
        assert again == plan
        assert again.micro_batches == 8
        assert again.makespan_ns == plan.makespan_ns


def test_a_mini_batch_is_divided_and_the_numbers_are_compared(
    sizes: list[baechi.Graph], cluster: baechi.Cluster
) -> None:
    plan = baechi.place_graph(
        sizes[0], cluster, micro_batches="auto", mini_batch=8, sizes=[sizes[1]], budget=0.02
    )
    listed = baechi.place_graph(
        sizes[0], cluster, micro_batches=[1, 2, 4, 8], mini_batch=8, sizes=[sizes[1]], budget=0.02
    )
    assert listed.makespan_ns == plan.makespan_ns
    told = " ".join(plan.notes)
    assert all(f"{m} micro-batch" in told for m in (1, 2, 4, 8))
    assert plan.micro_batches > 1


def test_what_cannot_be_is_said(
    sizes: list[baechi.Graph], cluster: baechi.Cluster, plan: baechi.Plan
) -> None:
    with pytest.raises(ValueError, match="3 does not divide the mini-batch of 8"):
        baechi.place_graph(sizes[0], cluster, micro_batches=3, mini_batch=8)
    with pytest.raises(ValueError, match="auto or whole numbers from 1 to 4096"):
        baechi.place_graph(sizes[0], cluster, micro_batches=0)
    with pytest.raises(ValueError, match="found '1,x'"):
        baechi.place_graph(sizes[0], cluster, micro_batches=[1, "x"])  # type: ignore[list-item]
    with pytest.raises(ValueError, match="planned order"):
        baechi.place_graph(sizes[0], cluster, micro_batches=4, order="none")
    with pytest.raises(ValueError, match="planned order"):
        plan.with_order("none")


def test_explain_says_why_devices_are_idle_and_what_would_help(plan: baechi.Plan) -> None:
    told = baechi.explain(plan)
    for device in told["devices"]:
        assert sum(device["idle"].values()) == plan.makespan_ns - device["busy"]
    assert [outcome["name"] for outcome in told["pipeline"]["next"]] == [
        "4 micro-batches",
        "twice the memory",
    ]
    assert "pipeline of 8 micro-batches" in str(told)


def test_studies_plan_steps_as_place_graph_does(
    sizes: list[baechi.Graph], cluster: baechi.Cluster
) -> None:
    step: Any = {"micro_batches": "1,4", "mini_batch": 8, "sizes": [sizes[1]], "budget": 0.02}
    plan = baechi.place_graph(sizes[0], cluster, **step)
    assert plan.micro_batches == 4
    (base,) = baechi.what_if(sizes[0], cluster, standard=False, **step)
    assert (base["makespan"], base["micro_batches"]) == (plan.makespan_ns, 4)
    (point,) = baechi.sweep(sizes[0], cluster, devices=[4], **step)
    assert (point["makespan"], point["micro_batches"]) == (plan.makespan_ns, 4)
    assert baechi.least(sizes[0], cluster, of="devices", **step)["devices"]["count"] == 1
    assert baechi.device_worth(sizes[0], cluster, **step)["micro_batches"] == 4
    told = baechi.sensitivity(sizes[0], cluster, samples=1, off_by=0, **step)
    assert told["samples"][0]["makespan"] == told["makespan"]
    assert told["micro_batches"] == 4


def test_studies_say_what_cannot_be(sizes: list[baechi.Graph], cluster: baechi.Cluster) -> None:
    studies: tuple[Any, ...] = (baechi.what_if, baechi.sweep, baechi.least, baechi.sensitivity)
    for study in studies:
        with pytest.raises(ValueError, match="3 does not divide the mini-batch of 8"):
            study(sizes[0], cluster, micro_batches=3, mini_batch=8)
        with pytest.raises(ValueError, match="there are costs for one only"):
            study(sizes[0], cluster, micro_batches="auto", mini_batch=8)
        with pytest.raises(ValueError, match=r"sizes: expected a list of baechi\.Graph"):
            study(sizes[0], cluster, sizes=sizes[1])
    with pytest.warns(UserWarning, match="scaled from a batch of 1 to 4 samples"):
        baechi.what_if(
            sizes[0], cluster, micro_batches=2, mini_batch=8, standard=False, budget=0.02
        )
