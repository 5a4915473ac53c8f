# SPDX-License-Identifier: Apache-2.0
"""The paper's tables at a tiny size: every figure is what a direct call gives."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import baechi
from experiments import __main__ as command
from experiments import insufficient_memory, scopes, step_time, svg
from experiments.page import Column, Page, Table, milliseconds
from experiments.workloads import CURRENT, GNMT, PAPER, Workload

TINY = Workload("GNMT, length 2, batch 4", "gnmt", {"length": 2, "batch": 4}, GNMT)


@pytest.fixture(scope="module")
def graph() -> baechi.Graph:
    return TINY.graph()


@pytest.mark.parametrize("workload", [PAPER[0], TINY, PAPER[-2], *CURRENT], ids=lambda w: w.name)
def test_expert_placements_keep_every_rule(workload: Workload) -> None:
    graph, cluster = workload.graph(), workload.devices()
    device_of = workload.expert_placement(graph, cluster)
    assert set(device_of) == set(graph.names)
    for problem in baechi.verify(baechi.simulate(graph, cluster, device_of)):
        assert "more than its capacity" in problem


def test_the_expert_of_gnmt_has_a_layer_on_each_device(graph: baechi.Graph) -> None:
    device_of = TINY.expert_placement(graph, baechi.Cluster("paper"))
    for layer in range(4):
        for side in ("enc", "dec"):
            name = f"{side}/cell_{layer}/kernel"
            assert device_of[name] == f"gpu:{layer}"
            assert device_of[f"clip/{name}/mul"] == f"gpu:{layer}"
            updates = [n for n in graph.names if n.startswith(f"Adam/update_{name}")]
            assert updates
            assert {device_of[update] for update in updates} == {f"gpu:{layer}"}
    assert device_of["enc/embedding"] == device_of["dec/embedding"] == "gpu:0"
    assert device_of["projection/kernel"] == device_of["attention/v"] == "gpu:3"


def test_equal_layers_gives_each_device_as_many(graph: baechi.Graph) -> None:
    devices = ["a", "b", "c", "d"]
    device_of = scopes.equal_layers(graph, devices, GNMT.layers)
    of_layer = {layer: device_of[f"{layer}/kernel"] for layer in scopes.layers(graph, GNMT.layers)}
    assert list(of_layer.values()) == ["a", "a", "b", "b", "c", "c", "d", "d"]
    with pytest.raises(ValueError, match="no operator"):
        scopes.equal_layers(graph, devices, "nothing")


def test_step_times_are_those_of_direct_calls(graph: baechi.Graph) -> None:
    row = step_time.row(TINY)
    single = baechi.place_graph(graph, "paper", "single").makespan_ns
    best = baechi.place_graph(graph, "paper", "auto")
    expert = baechi.simulate(
        graph, "paper", TINY.expert_placement(graph, baechi.Cluster("paper"))
    ).makespan_ns
    assert row["single"] == single
    assert row["expert"] == expert
    assert row["m-etf"] == baechi.place_graph(graph, "paper", "m-etf").makespan_ns
    assert row["auto"] == best.makespan_ns
    assert row["auto/expert"] == expert / best.makespan_ns
    assert row["gap"] == pytest.approx(best.gap)


def test_what_does_not_fit_is_shown_as_oom() -> None:
    small = Workload("tiny", "gnmt", TINY.options, GNMT, cluster="4x300MiB")
    row = step_time.row(small)
    assert row["single"] is None
    assert row["auto/single"] is None
    step_times = step_time.tables("title", [small])[0]
    shown = step_times.markdown().splitlines()[-1].split(" | ")
    assert shown[1] == "OOM"


def test_a_part_of_the_memory_is_that_part(graph: baechi.Graph) -> None:
    cases = insufficient_memory.cases([TINY])
    assert [case.memory for case in cases] == [
        f"{part} {whole}" for whole in ("of 8 GiB", "of the need") for part in ("40%", "30%")
    ]
    need = baechi.simulate(graph, "1x8GiB", dict.fromkeys(graph.names, "gpu:0")).peaks["gpu:0"]
    assert [case.cluster.devices[3].capacity for case in cases[2:]] == [
        int(0.4 * need),
        int(0.3 * need),
    ]


def test_tight_memory_shows_what_fits_and_what_does_not(graph: baechi.Graph) -> None:
    case = insufficient_memory.cases([TINY])[2]
    row = insufficient_memory.row(case, case.outcomes())
    assert row["single"] is None
    assert row["peaks"]["single"][0] > row["capacity"]
    best = baechi.place_graph(graph, case.cluster, "auto")
    assert row["auto"] == best.makespan_ns
    assert row["peaks"]["auto"] == list(best.peaks.values())
    assert max(row["peaks"]["auto"]) <= row["capacity"]
    roomy = baechi.place_graph(graph, "paper", "auto").makespan_ns
    assert row["auto/roomy"] == best.makespan_ns / roomy
    figure = insufficient_memory.peaks_figure([case], [row])
    assert figure.count("#c0392b") >= 1  # what runs over


def test_axes_put_values_where_they_belong() -> None:
    axis = svg.covering([3, 250], log=True)
    assert (axis.low, axis.high) == (1, 1000)
    assert axis.share(10) == pytest.approx(1 / 3)
    assert axis.marks() == pytest.approx([1, 10, 100, 1000])
    linear = svg.Axis(0, 42)
    assert linear.share(21) == 0.5
    assert linear.marks() == [0, 10, 20, 30, 40]


def test_a_page_has_the_same_values_as_text_and_as_json(tmp_path: Path) -> None:
    table = Table("t", [Column("a", "A"), Column("b", "B", milliseconds, "OOM")])
    table.rows = [{"a": "x", "b": 12_340_000}, {"a": "y", "b": None}]
    page = Page("p", "Title", "Simulated.", "ab", [table], figures={"f": ("Words", "<svg/>")})
    paths = page.write(tmp_path, "a command")
    assert [path.name for path in paths] == ["p.md", "p.json", "p_f.svg"]
    text = paths[0].read_text()
    assert "| x | 12.3 |\n| y | OOM |\n" in text
    assert "`a command`" in text
    assert "![Words](p_f.svg)" in text
    document = json.loads(paths[1].read_text())
    assert document["tables"][0]["rows"] == table.rows
    assert len(document["costs"]) == 2


def test_the_command_names_what_it_does_not_know(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as refused:
        command.main(["step_tim"])
    assert refused.value.code == 2
    assert "no experiment 'step_tim'" in capsys.readouterr().err


@pytest.mark.parametrize("name", command.TABLES)
def test_every_experiment_has_a_page(name: str, root: Path) -> None:
    document = json.loads((root / "docs/results" / f"{name}.json").read_text())
    assert document["command"] == f"./do experiments {name}"
    assert (root / "docs/results" / f"{name}.md").read_text().startswith(f"# {document['title']}")
