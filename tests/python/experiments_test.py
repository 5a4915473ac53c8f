# SPDX-License-Identifier: Apache-2.0
"""The paper's tables at a tiny size: every figure is what a direct call gives."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import baechi
from experiments import __main__ as command
from experiments import (
    catalogue,
    host_memory,
    insufficient_memory,
    paper,
    paper_steps,
    peer_placers,
    peers,
    pipelines,
    placement_time,
    policy_gradient,
    progress,
    ranks,
    recompute,
    recompute_small,
    scaling,
    scopes,
    several,
    stacks,
    step_time,
    svg,
)
from experiments.page import LONGEST, Column, Page, Table, from_csv, milliseconds, write_whole
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


def test_the_papers_steps_stand_beside_ours(graph: baechi.Graph) -> None:
    row = paper_steps.beside(TINY, 1.0, "cut")
    for key, letter in (("m-etf paper", True), ("m-etf", False)):
        plan = baechi.place_graph(graph, "paper", "m-etf", paper=letter)
        assert row[key] == plan.makespan_ns
    assert row["m-etf ratio"] == row["m-etf paper"] / row["m-etf"]
    assert paper_steps.beside(TINY, 0.001, "cut")["m-sct paper"] is None
    measured = {"workload": paper_steps.PUBLISHED_OF, "memory": "100%", "single": 917_500_000}
    (one, *others) = paper_steps.published([measured | {"m-topo paper": None}]).rows
    assert one["ratio"] == pytest.approx(917.5 / 458.75)
    assert [other["ratio"] for other in others] == [None] * 3


def test_what_does_not_fit_is_shown_as_oom() -> None:
    small = Workload("tiny", "gnmt", TINY.options, GNMT, cluster="4x300MiB")
    row = step_time.row(small)
    assert row["single"] is None
    assert row["auto/single"] is None
    step_times = step_time.table("title", [small])
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


def test_what_shares_a_label_is_one_group() -> None:
    labels = [(0, "a"), (3, "a"), (1, "b"), (3, "c"), (4, "c")]
    assert policy_gradient.united(6, labels).tolist() == [0, 1, 2, 0, 0, 3]


def test_a_simulator_tells_what_simulate_tells(graph: baechi.Graph) -> None:
    cluster = baechi.Cluster("paper")
    simulator = baechi.Simulator(graph, cluster)
    random = np.random.default_rng(1)
    for _ in range(3):
        devices = random.integers(0, 4, len(graph))
        step, peaks = simulator.run(devices)
        names = [cluster.devices[device].name for device in devices]
        plan = baechi.simulate(graph, cluster, dict(zip(graph.names, names, strict=True)))
        assert step == plan.makespan_ns
        assert peaks == [plan.peaks[device.name] for device in cluster.devices]
    with pytest.raises(baechi.InputError, match=r"devices\[0\] is 4, expected 0 to 4"):
        simulator.run(np.full(len(graph), 4))
    with pytest.raises(baechi.InputError, match="devices has 1 entries"):
        simulator.run(np.zeros(1, dtype=np.int64))


def test_the_learner_learns_where_groups_belong() -> None:
    group_of = np.repeat(np.arange(12), 2)

    def run(devices: policy_gradient.Integers) -> tuple[int, list[int]]:
        wrong = int((devices != group_of % 3).sum())
        return 1000 + 1000 * wrong, [0, 0, 0]

    how = policy_gradient.Learning(samples=1600, rate=0.3)
    found = policy_gradient.learn(run, group_of, np.ones(3, dtype=np.int64), how)
    assert found.step_ns == 1000  # one of half a million placements
    assert found.devices is not None
    assert found.devices.tolist() == (group_of % 3).tolist()
    assert found.samples_until(1000) == found.history[-1][:2]
    assert found.samples_until(999) is None


def test_the_learner_keeps_out_of_what_does_not_fit() -> None:
    def run(devices: policy_gradient.Integers) -> tuple[int, list[int]]:
        return 1 + int(devices.sum()), [5, 10]

    capacities = np.array([10, 9])
    found = policy_gradient.learn(
        run, np.arange(2), capacities, policy_gradient.Learning(samples=32)
    )
    assert found.step_ns is None
    assert found.samples == 32


def test_a_learner_is_held_against_our_methods(graph: baechi.Graph) -> None:
    ours = placement_time.placement_row(TINY)
    assert ours["m-sct step"] == baechi.place_graph(graph, "paper", "m-sct").makespan_ns
    assert 0 < ours["m-sct"] < 10
    how = policy_gradient.Learning(samples=64)
    row = placement_time.learner_row(TINY, "scopes", ours, how)
    assert row["samples"] == 64
    assert row["step/m-sct"] == row["step"] / ours["m-sct step"]
    assert row["on the machine"] > 64 * row["step"] / 1e9


def test_the_learners_groups_keep_colocation(graph: baechi.Graph) -> None:
    cluster = baechi.Cluster("paper")
    for group_of in (
        placement_time.by_scope(graph, TINY),
        placement_time.by_optimizer(graph, cluster),
    ):
        assert 4 < group_of.max() < len(graph) / 2
        names = {name: f"gpu:{k % 4}" for name, k in zip(graph.names, group_of, strict=True)}
        assert baechi.verify(baechi.simulate(graph, cluster, names)) == []


def test_the_papers_tables_are_those_of_direct_calls(graph: baechi.Graph) -> None:
    row = paper.time_row(TINY)
    for way, how in paper.WAYS.items():
        for level in ("none", "all"):
            plan = baechi.place_graph(graph, "paper", "m-etf", optimize=level, **how)
            assert row[f"{way} m-etf {level} step"] == plan.makespan_ns
        assert len(graph) == row["operators"] > row[f"{way} operators"] > 0


def test_wrong_profiles_are_held_against_known_ones(graph: baechi.Graph) -> None:
    row = paper.wrong_profiles(TINY, 1.0, samples=3)
    found = baechi.sensitivity(graph, "paper", "m-sct", off_by=paper.OFF_BY, samples=3)
    assert row["default"] == baechi.place_graph(graph, "paper", "m-sct").makespan_ns
    assert row["default median"] == found["steps"]["median"] / row["default"]
    assert row["default min"] <= row["default median"] <= row["default max"]
    assert row["default min"] < row["default max"]
    assert row["default fit"] == row["paper fit"] == 3
    assert paper.figure([row]).count("<rect") == 3  # the page, and a box for each way


def test_colocated_follows_most_of_the_work() -> None:
    builder = baechi.GraphBuilder("pair")
    builder.add("a", {"gpu": 10}, colocate=["g"])
    builder.add("b", {"gpu": 30}, colocate=["g"])
    builder.add("c", {"gpu": 5})
    graph = builder.build()
    device_of = peer_placers.colocated(graph, ["x", "y"], {"a": "x", "b": "y", "c": "x"})
    assert device_of == {"a": "y", "b": "y", "c": "x"}


def two_chains() -> baechi.Graph:
    """Two chains of operators of 100 us, which meet at their end; x0 and x1 are a group."""
    builder = baechi.GraphBuilder("two chains")
    for chain in "xy":
        for i in range(4):
            inputs = [(f"{chain}{i - 1}", 0)] if i else []
            group = ["g"] if chain == "x" and i < 2 else []
            builder.add(
                f"{chain}{i}", {"gpu": 100_000}, outputs=[2**20], inputs=inputs, colocate=group
            )
    builder.add("end", {"gpu": 1_000}, inputs=[("x3", 0), ("y3", 0)])
    return builder.build()


def test_the_hypergraph_has_a_node_per_group_and_a_set_per_tensor() -> None:
    cluster = baechi.Cluster("2x8GiB", link="10us,1GB/s")
    node_of, work, crossing = peer_placers._hypergraph(two_chains(), cluster)
    assert node_of == [0, 0, 1, 2, 3, 4, 5, 6, 7]
    assert work == [201, 101, 101, 101, 101, 101, 101, 2]
    assert set(crossing) == {(0, 1), (1, 2), (2, 7), (3, 4), (4, 5), (5, 6), (6, 7)}
    assert set(crossing.values()) == {10 + 1_048}


def test_mapped_placement_balances_the_work_and_cuts_little() -> None:
    pytest.importorskip("mtkahypar")
    graph, cluster = two_chains(), baechi.Cluster("2x8GiB", link="10us,1GB/s")
    device_of = peer_placers.mapped_placement(graph, cluster)
    assert {device_of[f"x{i}"] for i in range(4)} != {device_of[f"y{i}"] for i in range(4)}
    assert len({device_of[f"x{i}"] for i in range(4)}) == 1
    assert len({device_of[f"y{i}"] for i in range(4)}) == 1


def test_a_device_map_places_what_is_in_a_module_and_what_follows_it(
    graph: baechi.Graph,
) -> None:
    of_module = {"enc": 0, "dec": 1, "dec.cell_3": 2}
    device_of = scopes.by_module(graph, ["x", "y", "z"], {}, of_module)
    assert device_of["enc/cell_2/kernel"] == "x"
    assert device_of["dec/cell_2/kernel"] == device_of["clip/dec/cell_2/kernel/mul"] == "y"
    assert device_of["dec/cell_3/kernel"] == "z"


def test_scaling_measures_every_method_where_it_ends_in_minutes() -> None:
    rows = scaling.measure([(50, 2), (200, 8)], "operators")
    assert [(row["operators"], row["devices"]) for row in rows] == [(50, 2), (200, 8)]
    assert rows[1]["edges"] == baechi.generate("layered", operators=200).num_edges
    assert {"m-topo", "m-etf", "m-sct", "chain", "partition"} <= set(rows[0])
    assert "m-etf, optimised" in rows[1]
    assert "partition" not in scaling.names_of([{"operators": 10**6, "of": "operators"}])
    assert "m-etf, optimised" not in scaling.names_of([{"operators": 10**5, "of": "devices"}])


def test_peers_in_short_count_what_fits_and_compare_steps() -> None:
    found = [("a", "x", 2.0), ("b", "x, fused graph", 8.0), ("a", "auto", 1.0), ("b", "y", None)]
    rows = [
        {"workload": graph, "placer": placer, "over auto": over, "seconds": 1.0}
        for graph, placer, over in [*found, ("a", "y", 3.0)]
    ]
    short = {row["placer"]: row for row in peers.summary(rows).rows}
    assert list(short) == ["x", "auto", "y"]
    assert [row["fits"] for row in short.values()] == ["2 of 2", "1 of 2", "1 of 2"]
    assert short["x"]["mean"] == pytest.approx(4)
    assert (short["x"]["least"], short["x"]["largest"]) == (2, 8)


def test_axes_put_values_where_they_belong() -> None:
    linear = svg.Axis(0, 42)
    assert linear.share(21) == 0.5
    assert linear.marks() == [0, 10, 20, 30, 40]


def test_a_page_has_the_same_values_as_text_and_as_csv(tmp_path: Path) -> None:
    table = Table("t", [Column("a", "A"), Column("b", "B", milliseconds, "OOM")])
    table.rows = [{"a": "x", "b": 12_340_000}, {"a": "y", "b": None}]
    page = Page("p", "Title", "Simulated.", "ab", [table], figures={"f": ("Words", "<svg/>")})
    paths = page.write(tmp_path, "a command")
    assert [path.name for path in paths] == ["p.md", "p.csv", "p_f.svg"]
    text = paths[0].read_text()
    assert "| x | 12.3 |\n| y | OOM |\n" in text
    assert "`a command`" in text
    assert "![Words](p_f.svg)" in text
    assert from_csv(paths[1].read_text()) == {"t": [table.rows[0], {"a": "y"}]}


def test_a_long_table_is_in_the_raw_values_alone(tmp_path: Path) -> None:
    rows = [{"a": f"x{i}", "peaks": {"gpu:0": i}} for i in range(LONGEST + 1)]
    page = Page("p", "Title", "Simulated.", "a", [Table("t", [Column("a", "A")], rows, "Notes.")])
    text, raw = (path.read_text() for path in page.write(tmp_path, "a command"))
    assert f"Notes.\n\nThe {LONGEST + 1} rows are in [p.csv](p.csv).\n" in text
    assert "x1" not in text
    assert from_csv(raw)["t"] == rows


def test_the_command_names_what_it_does_not_know(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as refused:
        command.main(["step_tim"])
    assert refused.value.code == 2
    assert "no experiment 'step_tim'" in capsys.readouterr().err


def test_wrong_folders_and_options_are_said_before_anything_runs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.delattr(step_time, "run")
    (tmp_path / "file").touch()
    missing = str(tmp_path / "missing")
    for arguments, said in (
        (["auto", "--graphs", missing], f"there is no folder {missing}"),
        (["auto", "--graphs", str(tmp_path)], f"auto reads paper, which is not in {tmp_path}"),
        (["prototype_placements", "--graphs", str(tmp_path)], "reads paper/prototype_placements"),
        (["step_time", "--output", str(tmp_path / "file")], "cannot make"),
        (["step_time", "--output", str(tmp_path / "file/below")], "Not a directory"),
        (["step_time", "--models", "vit"], "--models is only for accelerator"),
        (["all", "--simulated"], "--simulated is only for accelerator"),
    ):
        with pytest.raises(SystemExit) as refused:
            command.main(arguments)
        assert refused.value.code == 2
        assert said in capsys.readouterr().err


def test_what_is_not_installed_is_said_and_skipped(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def refuse() -> None:
        raise peer_placers.Missing("no such package")

    monkeypatch.setattr(peers, "require", refuse)
    monkeypatch.setitem(catalogue.EXPERIMENTS, "peers", catalogue.Experiment("peers", 1))
    assert command.main(["peers", "--output", str(tmp_path)]) == several.SKIPPED
    assert "skipped: no such package" in capsys.readouterr().out
    assert list(tmp_path.iterdir()) == []


def test_the_command_writes_the_page_of_an_experiment(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(step_time, "PAPER", [TINY])
    monkeypatch.setattr(step_time, "CURRENT", [])
    assert command.main(["step_time", "--output", str(tmp_path)]) == 0
    assert "step_time" in capsys.readouterr().out
    (row, *others) = from_csv((tmp_path / "step_time.csv").read_text()).popitem()[1]
    assert (row["workload"], others) == (TINY.name, [])
    means = re.findall(r"m-etf: ([\d.]+)x", (tmp_path / "step_time.md").read_text())
    assert means == [f"{row['m-etf/single']:.2f}"]


def test_several_experiments_outlive_one_that_fails(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    codes = {"pytorch_models": 3, "scaling": -9, "peers": several.SKIPPED, "step_time": 0}

    def run_apart(name: str, *_: object) -> several.Ended:
        return several.Ended(name, codes[name], 90.0, "OSError: the disk is full")

    monkeypatch.setattr(several, "run_apart", run_apart)
    assert several.run_several(list(codes), tmp_path, may_skip=True) == 1
    said = capfd.readouterr().err
    assert "[2/4] scaling" in said
    assert re.search(r"pytorch_models +1.5 min  FAILED \(exit code 3\): OSError: the disk", said)
    assert re.search(r"scaling .*FAILED: ended by signal 9", said)
    assert re.search(r"peers .*skipped", said)
    assert re.search(r"step_time .*done", said)
    assert "in all about 4 min on two cores; each page" in said
    del codes["pytorch_models"], codes["scaling"]
    assert several.run_several(list(codes), tmp_path, may_skip=True) == 0
    assert several.run_several(list(codes), tmp_path) == 1


def test_the_total_is_without_what_only_some_machines_can_run() -> None:
    assert catalogue.in_all(["truth"]) == "about 12 min on two cores"
    assert catalogue.in_all(["protocol", "accelerator", "auto"]) == (
        "about 9 min on two cores, and 15 more where there is an accelerator"
    )
    assert catalogue.in_all(["step_time"]) == "under a minute on two cores"


def test_a_page_that_lacks_something_is_written_and_fails(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    page = Page("step_time", "Title", "Simulated.", "a", [], lacks="nothing was measured")
    monkeypatch.setattr(step_time, "run", lambda: page)
    assert command.main(["step_time", "--output", str(tmp_path)]) == 1
    assert capsys.readouterr().err == "step_time: nothing was measured\n"
    assert (tmp_path / "step_time.md").exists()


def test_a_file_that_cannot_be_written_whole_stays_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "page.md"
    write_whole(path, "old")
    with pytest.raises(UnicodeEncodeError):
        write_whole(path, "new \udcff")
    write_whole(tmp_path / "data", b"\x00")
    assert path.read_text() == "old"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["data", "page.md"]


def test_what_an_experiment_dies_of_is_said_last(
    capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "paper").mkdir()
    (tmp_path / "paper/prototype_placements.json.gz").write_text("not compressed")
    ended = several.run_apart("prototype_placements", tmp_path, tmp_path)
    assert ended.code == 1
    assert "BadGzipFile" in ended.last_words
    assert ended.last_words in ended.in_words()
    assert "Traceback" in capfd.readouterr().err


def test_needs_are_those_of_the_experiments_that_are_named(
    capsys: pytest.CaptureFixture[str], root: Path
) -> None:
    assert command.main(["--needs", "step_time", "truth", "peers"]) == 0
    assert capsys.readouterr().out.split() == ["torch", "peers"]
    assert command.main(["--needs", "all"]) == 0
    needs = capsys.readouterr().out.split()
    assert sorted(needs) == ["peers", "torch"]
    for need in needs:
        assert (root / f"tools/requirements-{need}.txt").exists()
        assert need in catalogue.MODULE_OF_NEED


def test_without_its_framework_an_experiment_is_skipped(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setitem(catalogue.MODULE_OF_NEED, "torch", "a_module_that_nobody_has")
    assert command.main(["truth", "--output", str(tmp_path)]) == several.SKIPPED
    assert "skipped: a_module_that_nobody_has is not installed" in capsys.readouterr().out


def test_progress_counts_and_names(capsys: pytest.CaptureFixture[str]) -> None:
    assert list(progress.each(["a", "b"], str.upper, of="letters")) == ["a", "b"]
    assert re.search(r"1/2 letters: A \(.*\n +2/2 letters: B \(", capsys.readouterr().err)


def test_bars_beyond_a_limit_are_red_where_that_is_a_fault() -> None:
    panel = svg.Bars("t", {"a name that is longer": [5.0]}, 4.0)
    assert svg.grouped_bars([panel], "y").count("#c0392b") == 1


@pytest.mark.parametrize("name", catalogue.EXPERIMENTS)
def test_every_experiment_has_a_page(name: str, root: Path) -> None:
    folder = root / "docs/lab/results"
    if name == catalogue.ON_HARDWARE and not (folder / f"{name}.md").exists():
        pytest.skip("no accelerator has written it yet")
    raw = f"{name}.csv"
    text = (folder / f"{name}.md").read_text()
    assert f"`./do experiments {name}`. Raw values: [{raw}]({raw})." in text
    assert (folder / raw).exists()


def test_the_index_names_every_page(root: Path) -> None:
    folder = root / "docs/lab/results"
    index = (folder / "README.md").read_text()
    pages = {path.name for path in folder.glob("*.md")} - {"README.md"}
    assert set(re.findall(r"\]\((\w+\.md)\)", index)) <= pages
    for page in pages:
        assert re.search(rf"[`\[]{page.removesuffix('.md')}[`\]]", index), page


def test_stacks_have_the_weights_and_the_work_of_their_models() -> None:
    graph = stacks.gpt2_medium(2, "a100")
    weights = sum(graph[name].permanent for name in graph.names) / stacks.PER_WEIGHT
    assert weights == 24 * 12 * 1024**2 + 2 * 50_257 * 1024
    forward = [name for name in graph.names if "gradient" not in name]
    assert len(graph) == 3 * len(forward)
    assert all(graph[f"{name}/weight_gradient"].forward == name for name in forward)


def test_the_branches_of_a_stack_wait_for_each_other_only_where_they_join() -> None:
    graph = stacks.multimodal(2, "a100")
    one = baechi.place_graph(graph, "1x1TiB", "single", bounds=False).makespan_ns
    three = baechi.place_graph(graph, baechi.Cluster("3x1TiB", link="0us"), "m-etf", bounds=False)
    assert three.makespan_ns < 0.6 * one


def test_a_row_of_pipelines_compares_with_every_named_schedule() -> None:
    model = pipelines.Model("small", "llama", 1, {"layers": 4, "training": True})
    devices = pipelines.Devices("2 equal", "2x1TiB", "5us,200GB/s")
    row = pipelines.measured(model, model.graph(), devices, 4)
    assert min(row["one"], row["1f1b"], row["equal"], row["divided"]) >= 1
    assert row["1f1b"] >= row["equal"]
    assert row["one"] > 1.5
    assert {row["equal_method"], row["divided_method"]} <= set(pipelines.NAMED)
    alone = pipelines.measured(model, model.graph(), devices, 1)
    assert "equal" not in alone
    assert alone["one"] >= 1


def test_ranks_are_compared_with_the_best_of_the_others() -> None:
    own = {"workload": "chain", "micro_batches": 4, "predicted_ns": 90, "measured_ns": 100}
    other = {**own, "schedule": "Schedule1F1B", "measured_ns": 150}
    slower = {**own, "schedule": "ScheduleGPipe", "measured_ns": 170}
    elsewhere = {**own, "micro_batches": 8, "schedule": "ScheduleGPipe", "measured_ns": 10}
    (row,) = ranks.beside([own], [other, slower, elsewhere])
    assert (row["gain"], row["1F1B_ns"], row["GPipe_ns"]) == (1.5, 150, 170)


def test_ranks_are_compared_with_their_plans() -> None:
    own = {"workload": "chain", "micro_batches": 4, "predicted_ns": 90, "measured_ns": 100}
    own |= {"processes": 2, "replicas": 1, "wait_ms": 2}
    long = {**own, "wait_ms": 8, "predicted_ns": 392, "measured_ns": 400}
    other = {**own, "replicas": 2}
    first, second = ranks.with_long([own, long, other])
    assert first["error"] == pytest.approx(-0.1)
    assert first["long_error"] == pytest.approx(-0.02)
    assert second["long_error"] is None


def test_on_a_small_chain_auto_is_as_good_as_every_choice() -> None:
    graph = recompute_small.small_graph(3, "chains")
    whole = insufficient_memory.need(graph, baechi.Cluster("1x1GiB"))
    cluster = insufficient_memory.with_capacity(baechi.Cluster("1x1GiB"), int(0.65 * whole))
    best = recompute_small.exhaustive(graph, cluster)
    found = recompute_small.again(graph, cluster)
    assert best is not None
    assert found.step_ns == best
    assert found.plan is not None
    assert not baechi.verify(found.plan)
    assert found.plan.recomputed
    row = recompute.point("small", graph, whole, 1, 0.65)
    assert row["auto"] == best
    assert row["none"] is None


def planned_on_two(model: str, part: float, *ways: str) -> list[baechi.Plan]:
    """Plan a model with so much of its need on each of two devices, by these ways to repeat."""
    graph = recompute.models()[model]()
    whole = insufficient_memory.need(graph, recompute.devices_for(graph, 1))
    cluster = insufficient_memory.with_capacity(recompute.devices_for(graph, 2), int(part * whole))
    options: dict[str, Any] = {"budget": 0.1, "suggest": False, "bounds": False}
    return [baechi.place_graph(graph, cluster, recompute=way, **options) for way in ways]


def test_whether_memory_costs_time_is_told_by_equal_searches() -> None:
    """The plan of all of the budget is as short as one of a small part with ample memory."""
    none, auto = planned_on_two("Inception-V3, batch 32", 0.6, "none", "auto")
    assert auto.recomputed
    assert auto.makespan_ns < none.makespan_ns


def test_plans_with_some_second_runs_are_not_longer_than_with_all() -> None:
    """A large graph: one method divides it poorly with the memory that there is, another well."""
    some, every = planned_on_two("GNMT, batch 128", 0.4, "auto", "all")
    assert some.makespan_ns <= every.makespan_ns


# w1 and w0 are weights of two layers, and w1's update and state go with it.
def test_swapped_blocks_are_fetched_one_layer_ahead() -> None:
    def op(name: str, *inputs: str, **more: Any) -> dict[str, Any]:
        return {"name": name, "inputs": list(inputs), "outputs": [1], "time": {"gpu": 1}, **more}

    operators = [
        op("layers/0/w", variable=True),
        op("layers/1/w", variable=True),
        op("layers/0/f", "layers/0/w"),
        op("layers/1/f", "layers/0/f", "layers/1/w"),
        op("gradients/layers/1/f", "layers/1/f", "layers/1/w"),
        op("gradients/layers/0/f", "gradients/layers/1/f", "layers/0/w"),
        op(
            "optimizer/layers/1/w", "gradients/layers/1/f", "layers/1/w", kind="SgdStep", per="step"
        ),
    ]
    step, where = host_memory.swapped({"name": "two", "operators": operators}, 1)
    made = {o["name"]: o for o in step["operators"]}
    assert made["layers/1/f"]["inputs"] == ["layers/0/f", "layers/1/w>forward"]
    assert made["layers/1/w>forward"]["after"] == ["layers/0/f"]  # as the layer before it starts
    assert made["layers/1/w>backward"]["after"] == []  # nothing is behind the last layer
    assert {name for name, device in where.items() if device == "host:0"} == {
        "layers/1/w", "layers/1/w>forward", "layers/1/w>backward", "optimizer/layers/1/w"
    }  # fmt: skip
    assert made["gradients/layers/0/f"]["inputs"] == ["gradients/layers/1/f", "layers/0/w"]
