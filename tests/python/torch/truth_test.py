# SPDX-License-Identifier: Apache-2.0
"""Predicted and measured steps of placed models, at a tiny size."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("baechi.torch.sim")

import baechi
from experiments import placed_step, profile_models, protocol, truth, truth_default
from experiments.page import in_words
from experiments.program_order import in_program_order
from experiments.torch_workloads import MODES, TINY, estimated_graph, measured_graph

pytestmark = pytest.mark.repeats  # these measure what other tests prove

MACHINE = truth.VIRTUAL


@pytest.fixture(scope="module")
def recorded() -> Any:
    return placed_step.record(TINY["transformer"], MACHINE)


def test_one_device_takes_what_its_operators_take(recorded: Any) -> None:
    placement = placed_step.Placement.planned(recorded, MACHINE, 1, "single", bounds=False)
    step = placement.run()
    assert placement.plan.makespan_ns == placement.program_order_ns == recorded.work_ns
    missing = step.total * 1e9 - recorded.work_ns
    assert 0 <= missing <= 21e3  # the one that backward() starts with
    assert 0 < step.forward < step.total
    assert placement.peaks[0] == pytest.approx(step.peaks[0], rel=0.1)


def test_two_devices_are_predicted_and_steps_repeat(recorded: Any) -> None:
    placement = placed_step.Placement.planned(recorded, MACHINE, 2, "m-topo", bounds=False)
    row = truth.row(placement, placement.run())
    assert row["used"] == 2
    assert abs(row["error"]) < 0.15
    assert 0.97 < row["peak_low"] <= row["peak_high"] < 1.1
    assert truth.row(placement, placement.run(steps=2)) == row


def test_the_order_of_the_program_is_kept_on_every_device(recorded: Any) -> None:
    names = recorded.graph.names
    device_of = {name: f"gpu:{i % 2}" for i, name in enumerate(names)}
    chained = in_program_order(recorded.graph, device_of)
    plan = baechi.simulate(chained, MACHINE.cluster(2), device_of)
    for first in (0, 1):
        starts = plan.starts[first::2]
        assert starts == sorted(starts)
    free = baechi.simulate(recorded.graph, MACHINE.cluster(2), device_of)
    assert any(free.starts[i] > free.starts[i + 2] for i in range(len(names) - 2))


def test_a_kernel_that_lasts_lasts_on_the_real_clock() -> None:
    slow = dataclasses.replace(truth.SLOW, operator_time="500us", memory_bandwidth=None)
    recorded = placed_step.record(TINY["unet"], slow)
    placement = placed_step.Placement.planned(recorded, slow, 2, "m-topo", bounds=False)
    assert placement.run().total * 1e9 >= 0.99 * placement.plan.makespan_ns


def test_the_protocol_hides_copies_and_says_how_much() -> None:
    machine = dataclasses.replace(protocol.MACHINE, link="200us,6GB/s")
    recorded = placed_step.record(TINY["transformer"], machine)
    placement = placed_step.Placement.planned(recorded, machine, 4, "random", seed=2, bounds=False)
    row = protocol.row(placement, list(MODES))
    assert row["streams+order"] > 0
    assert row["free"] < row["streams"] < 0.9 * row["plain"]
    assert row["plain"] == row["plain forward"] + row["plain backward"]
    assert 0.1 < row["streams hidden forward"] <= 1
    assert row["streams gain"] == pytest.approx(1 - row["streams"] / row["plain"])
    page = protocol.page([row])
    assert f"{row['streams gain']:.1%}" in page.markdown("command")
    assert page.figures["modes"][1].count("transformer") == 1
    assert protocol.hidden(2.0, 1.5, 1.0) == 0.5
    assert protocol.hidden(1.0, 1.0, 1.0) is None


def test_profiles_are_written_and_read_back(tmp_path: Path) -> None:
    names = {"vit": TINY["vit"]}
    rows = profile_models.measure_all(tmp_path, names, repeats=1)
    graph = profile_models.load("vit", tmp_path)
    assert rows["vit"]["operators"] == len(graph)
    assert rows["vit"]["work_ns"] == sum(graph[n].times["*"] for n in graph.names) > 0
    with pytest.raises(baechi.InputError, match="there are: vit"):
        profile_models.load("nothing", tmp_path)
    assert (
        profile_models.write(tmp_path, "copy", graph).read_bytes()
        == (tmp_path / "vit.json.gz").read_bytes()
    )


def test_full_size_graphs_have_the_costs_of_the_device() -> None:
    slow, captured = estimated_graph("transformer", 64, {"gpu": "rtx2080"}, layers=1)
    fast, _ = estimated_graph("transformer", 64, {"gpu": "h200"}, layers=1)
    assert len(slow) == len(fast)
    assert captured.training
    work = [sum(g[n].times.get("gpu", 0) for n in g.names) for g in (slow, fast)]
    assert 0 < work[1] < 0.5 * work[0]


def test_a_page_of_the_truth_check_holds_its_rows() -> None:
    table = truth.on_the_virtual_clock(truth.virtual_rows([TINY["vit"]]))
    assert [row["devices"] for row in table.rows] == [2, 4, 4]
    assert table.markdown().count("| vit |") == 3
    spread = next(row for row in table.rows if row["used"] > 1)
    assert abs(spread["plan_error"]) < 0.2
    assert spread["plan_error"] == spread["plan"] / spread["ordered"] - 1
    json.dumps(table.rows)
    assert measured_graph(TINY["unet"], repeats=1).names[0] == "inputs"


def test_the_virtual_table_is_run_again_and_the_others_stay(tmp_path: Path) -> None:
    clocks = [truth.on_the_real_clock([]), truth.on_the_cpu([])]
    for table in clocks:
        table.rows = [{"workload": "unet", "devices": 1, "method": "single", "measured": 7_000_000}]
    first = truth.page([truth.on_the_virtual_clock([]), *clocks])
    first.made["date"] = "2000-01-01"
    first.write(tmp_path, "command")
    again = truth.again(tmp_path, [TINY["unet"]])
    assert len(again.tables[0].rows) == len(truth.PLACEMENTS)
    assert [row["devices"] for row in again.tables[1].rows] == list(truth_default.DEVICES)
    assert [table.rows for table in again.tables[2:]] == [table.rows for table in clocks]
    today = again.made["date"]
    head, virtual, by_default, *on_clocks, sizes = again.markdown("command").split("\n## ")
    assert sizes.startswith("Sizes")
    assert f"| unet | {TINY['unet'].sizes()} |" in sizes
    assert today in head
    assert "2000-01-01" not in head + virtual + by_default
    assert all(f"older: {in_words(first.made)}" in table for table in on_clocks)
    again.write(tmp_path, "command")
    third = truth.again(tmp_path, [])  # the dates are in the JSON as well
    assert [table.made for table in third.tables] == [None, None, first.made, first.made]


def test_tables_of_the_same_day_and_machine_say_nothing_of_it(tmp_path: Path) -> None:
    clocks = [truth.on_the_real_clock([]), truth.on_the_cpu([])]
    truth.page([truth.on_the_virtual_clock([]), *clocks]).write(tmp_path, "command")
    again = truth.again(tmp_path, [])
    assert "older" not in again.markdown("command").split("\n## ", 1)[1]


def test_the_default_is_measured_beside_the_modes_that_can_be_asked_for() -> None:
    row, _ = truth_default.rows_of([TINY["unet"]], MACHINE)
    assert row["mode"] in truth_default.MODES[1:]
    assert row["measured"] == row[f"{row['mode']} measured"]
    assert abs(row["error"]) < 0.15
    assert 0 <= row["behind"] < 0.1
    assert "longer than the faster mode" in truth_default.by_default([row]).markdown()
