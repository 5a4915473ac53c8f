# SPDX-License-Identifier: Apache-2.0
"""Planned and measured steps of placed models, at a tiny size."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import baechi
from experiments import profile_models, protocol, truth
from experiments.placed_step import measured_costs
from experiments.torch_workloads import TINY, estimated_graph

pytestmark = [
    pytest.mark.repeats,  # these measure what other tests prove
    pytest.mark.filterwarnings("ignore"),
]


def test_calls_and_steps_take_what_their_plans_say() -> None:
    rows = truth.rows_of([TINY["vit"]])
    assert [(row["devices"], row["micro_batches"]) for row in rows] == list(truth.CASES)
    for row in rows:
        # Beside the plan: the gradient of a loss and, in steps, its share and sum, of 20 us each.
        off = row["measured"] - row["planned"]
        assert 0 <= off < (50e3 if row["micro_batches"] is None else 130e3)
        assert row["eager"] == 0
    assert any(row["transfers"] for row in rows)
    page = truth.page(rows)
    json.dumps(page.tables[0].rows)
    assert page.markdown("command").count("| vit |") == len(rows) + 1


def test_sums_and_buffers_of_the_last_micro_batch_take_what_the_plan_says() -> None:
    workload = TINY["unet"]  # with buffers of batch norm
    costs = measured_costs(workload, truth.VIRTUAL, 2)
    row = truth.row(workload, 2, 2, costs, 0)
    assert 0 <= row["measured"] - row["planned"] < 130e3


def test_programs_are_measured_beside_eager_copies() -> None:
    costs = measured_costs(TINY["vit"], protocol.MACHINE)
    row = protocol.row(TINY["vit"], "m-topo", costs)
    assert row is not None
    assert row["free"] <= row["program"] < row["eager"]
    assert row["eager"] == row["eager forward"] + row["eager backward"]
    page = protocol.page([row])
    text = page.markdown("command")
    assert f"{row['gain']:.1%}" in text
    assert text.count("| vit | m-topo |") == 1


def test_profiles_are_written_and_read_back(tmp_path: Path) -> None:
    rows = profile_models.measure_all(tmp_path, {"vit": TINY["vit"]})
    graph = profile_models.load("vit", tmp_path)
    assert rows["vit"]["operators"] == len(graph)
    assert rows["vit"]["work_ns"] > 0
    with pytest.raises(baechi.InputError, match="there are: vit"):
        profile_models.load("nothing", tmp_path)
    copy = profile_models.write(tmp_path, "copy", graph)
    assert copy.read_bytes() == (tmp_path / "vit.json.gz").read_bytes()


def test_full_size_graphs_have_the_costs_of_the_device() -> None:
    slow, step = estimated_graph("transformer", 64, {"gpu": "rtx2080"}, layers=1)
    fast, _ = estimated_graph("transformer", 64, {"gpu": "h200"}, layers=1)
    assert len(slow) == len(fast)
    assert step.is_training
    work = [sum(g[n].times.get("gpu", 0) for n in g.names) for g in (slow, fast)]
    assert 0 < work[1] < 0.5 * work[0]
