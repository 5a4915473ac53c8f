# SPDX-License-Identifier: Apache-2.0
"""What is said while `place` works: stages that last, the result; and a placed model in words."""

from __future__ import annotations

import contextlib
import io
import re
import sys
import time
from types import SimpleNamespace
from typing import Any

import pytest
from baechi.summary import limited_by, on_one_device, summary
from baechi.tables import in_bytes, in_time

import baechi
from baechi import progress
from baechi import summary as summaries

Capsys = pytest.CaptureFixture[str]


@progress.stage("planning")
def planned() -> str:
    return "planned"


@progress.stage("recording")
def with_a_stage_inside() -> str:
    return planned()


@progress.told
def place(verbose: bool | None = None) -> Any:
    del verbose
    return planned()


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have every stage told, however short; what waits for the timer says so."""
    monkeypatch.setattr(progress, "PATIENCE", 0.0)


def test_a_stage_that_lasts_is_told_with_its_time(capsys: Capsys) -> None:
    assert place(verbose=True) == "planned"
    said = capsys.readouterr()
    assert re.fullmatch(r"baechi: planning \.\.\. \d+\.\d s\nplanned\n", said.err)
    assert said.out == ""


def test_a_notebook_has_one_output_that_changes(
    monkeypatch: pytest.MonkeyPatch, capsys: Capsys
) -> None:
    shown: list[str] = []

    def show(data: dict[str, str], **_: Any) -> Any:
        shown.append(data["text/html"])
        return SimpleNamespace(update=show)

    shell = SimpleNamespace(kernel=None)
    notebook = {"IPython": SimpleNamespace(get_ipython=lambda: shell)}
    notebook["IPython.display"] = SimpleNamespace(display=show)
    for name, module in notebook.items():
        monkeypatch.setitem(sys.modules, name, module)
    assert place() == "planned"
    assert re.fullmatch(r"<pre>baechi: planning \.\.\. \d+\.\d s</pre>", shown[-1])
    with progress.searching("placing", None) as tell:
        assert tell is not None
        tell("5 ms")
        tell("4 ms & less")
        assert "4 ms &amp; less</pre>" in shown[-1]
        assert "5 ms" not in shown[-1]
    assert shown[-1] == ""
    assert capsys.readouterr() == ("", "")


def test_a_stage_is_told_while_it_runs(capsys: Capsys) -> None:
    told = progress.Progress(0.01)
    said, limit = "", time.monotonic() + 60
    with told.stage("measuring"):
        while not said and time.monotonic() < limit:
            time.sleep(0.001)
            said = capsys.readouterr().err
        said += capsys.readouterr().err
        assert said == "baechi: measuring ..."
    assert re.fullmatch(r" \d+\.\d s\n", capsys.readouterr().err)


def test_a_stage_is_told_while_stderr_is_redirected(capsys: Capsys) -> None:
    told, elsewhere = progress.Progress(0.0), io.StringIO()
    with contextlib.redirect_stderr(elsewhere), told.stage("tracing"):  # as tracing does
        told.remark("compiling")
    assert elsewhere.getvalue() == ""
    assert re.match(r"baechi: tracing \.\.\.baechi: compiling\n \d", capsys.readouterr().err)


def test_a_short_stage_is_not_told(capsys: Capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "PATIENCE", 3600.0)
    place(verbose=True)
    assert capsys.readouterr().err == "planned\n"


@pytest.mark.parametrize(
    ("verbose", "rank", "said"),
    [
        (None, 0, "baechi: placed; a step is predicted to take 5.00 ms\n"),
        (None, 1, ""),
        (False, 0, ""),
    ],
)
def test_a_line_is_said_off_a_terminal(
    capsys: Capsys, verbose: bool | None, rank: int, said: str
) -> None:
    placed = SimpleNamespace(plan=SimpleNamespace(makespan_ns=5_000_000), rank=rank)
    assert progress.told(lambda **_: placed)(verbose=verbose) is placed
    assert capsys.readouterr() == ("", said)
    place()  # what has no plan is returned without a word
    assert capsys.readouterr() == ("", "")


def test_a_terminal_is_told_unless_asked_not_to(
    capsys: Capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    place(verbose=False)
    assert capsys.readouterr().err == ""
    place()
    assert "planning" in capsys.readouterr().err


@pytest.mark.parametrize("verbose", [None, True])
def test_a_process_without_stderr_places(
    monkeypatch: pytest.MonkeyPatch, verbose: bool | None
) -> None:
    monkeypatch.setattr("sys.stderr", None)
    assert place(verbose=verbose) == "planned"
    token = progress._CURRENT.set(progress.Progress(0.0))
    progress.remark("compiling")
    progress._CURRENT.reset(token)


def test_a_result_is_returned_where_it_cannot_be_written(
    monkeypatch: pytest.MonkeyPatch, capsys: Capsys
) -> None:
    def broken(text: str) -> int:
        raise BrokenPipeError(text)

    class Unwritable:
        """A result that fails where it is put into words."""

        def __str__(self) -> str:
            raise RuntimeError("no words")

    result = Unwritable()
    assert progress.told(lambda **_: result)(verbose=True) is result
    assert "no summary of the result: RuntimeError('no words')" in capsys.readouterr().err
    monkeypatch.setattr("sys.stderr.write", broken)
    assert place(verbose=True) == "planned"
    narrow = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr("sys.stderr", narrow)
    assert progress.told(lambda **_: "\u00e9")(verbose=True) == "\u00e9"
    narrow.close()
    assert place(verbose=True) == "planned"


def test_a_stage_inside_another_is_part_of_it(capsys: Capsys) -> None:
    token = progress._CURRENT.set(progress.Progress(0.0))
    try:
        with_a_stage_inside()
    finally:
        progress._CURRENT.reset(token)
    said = capsys.readouterr().err
    assert "recording" in said
    assert "planning" not in said


def test_a_remark_is_for_who_is_told(capsys: Capsys) -> None:
    progress.remark("compiling")
    assert capsys.readouterr().err == ""
    token = progress._CURRENT.set(progress.Progress(1.0))
    progress.remark("compiling")
    progress._CURRENT.reset(token)
    assert capsys.readouterr().err == "baechi: compiling\n"


def test_a_stage_that_fails_ends_its_line(capsys: Capsys) -> None:
    told = progress.Progress(0.0)

    def fail() -> None:
        with told.stage("planning"):
            raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        fail()
    assert capsys.readouterr().err.endswith(" s\n")


@pytest.fixture(scope="module")
def plan() -> baechi.Plan:
    return baechi.place_graph(baechi.generate("gnmt", length=4), "1x4GiB+1x2GiB@0.6")


RUNS_ON = {"gpu:0": "cuda:0", "gpu:1": "cuda:1"}


def test_a_summary_names_step_devices_memory_and_the_limit(plan: baechi.Plan) -> None:
    text = str(summary("GNMT", plan, RUNS_ON, {}))
    first, head, *rows, limit = text.splitlines()
    assert first.startswith("GNMT on ")
    assert in_time(plan.makespan_ns) in first
    assert on_one_device(plan) in first
    assert head.split() == ["device", "runs", "on", "operators", "busy", "peak", "capacity", "full"]
    assert [row.split()[:2] for row in rows] == [["gpu:0", "cuda:0"], ["gpu:1", "cuda:1"]]
    counted = [int(row.split()[2].replace(",", "")) for row in rows]
    assert counted == [list(plan.device_of.values()).count(name) for name in RUNS_ON]
    assert in_bytes(plan.peaks["gpu:0"]) in rows[0]
    assert "4.00 GiB" in rows[0]
    assert limit == f"limited by {limited_by(plan)}"
    assert len(limited_by(plan)) > 10


def test_a_summary_shows_the_peaks_of_who_runs_the_plan(plan: baechi.Plan) -> None:
    text = str(summary("GNMT", plan, RUNS_ON, {"gpu:0": 3 * 2**30}))
    assert "3.00 GiB  4.00 GiB   75%" in text


def test_one_device_is_the_best_one_or_does_not_fit() -> None:
    graph = baechi.generate("gnmt", length=4)
    by_search = baechi.place_graph(graph, "2x4GiB")
    by_name = baechi.place_graph(graph, "2x4GiB", method="m-etf")
    alone = baechi.place_graph(graph, "1x4GiB", method="single")
    assert on_one_device(by_search) == on_one_device(by_name) == in_time(alone.makespan_ns)
    need = max(alone.peaks.values())
    tight = baechi.place_graph(graph, f"3x{need * 3 // 4}B", method="m-etf")
    assert on_one_device(tight) == "does not fit"


def test_one_device_that_a_plan_fits_by_second_runs_is_not_said_to_be_too_small() -> None:
    graph = baechi.generate("gnmt", length=10)
    need = max(baechi.place_graph(graph, "1x4GiB", method="single").peaks.values())
    plan = baechi.place_graph(
        graph, f"1x{need * 95 // 100}B", order="program", recompute="auto", budget=0.1
    )
    assert plan.recomputed
    first = str(summary("GNMT", plan, {"gpu:0": "cuda:0"}, {})).splitlines()[0]
    assert first.startswith("GNMT on 1 of 1 devices")
    assert first.endswith("on one device: does not fit without second runs")


def test_the_figure_of_one_device_is_looked_up_or_planned_without_bounds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[dict[str, Any]] = []

    def counted(*args: Any, **options: Any) -> baechi.Plan:
        asked.append(options)
        return baechi.place_graph(*args, **options)

    monkeypatch.setattr(summaries, "place_graph", counted)
    graph = baechi.generate("gnmt", length=4)
    by_search = baechi.place_graph(graph, "2x4GiB")
    assert "single" in {row.method for row in by_search.methods}
    on_one_device(by_search)
    need = max(baechi.place_graph(graph, "1x4GiB", method="single").peaks.values())
    tight = baechi.place_graph(graph, f"3x{need * 3 // 4}B")
    row = next(each for each in tight.methods if each.method == "single")
    assert row.makespan_ns is None
    assert on_one_device(tight) == "does not fit"
    assert asked == []
    by_name = baechi.place_graph(graph, "2x4GiB", method="m-etf", order="program")
    said = on_one_device(by_name)
    assert asked == [{"order": "program", "bounds": False, "suggest": False}]
    alone = baechi.place_graph(graph, "2x4GiB", method="single", order="program")
    assert said == in_time(alone.makespan_ns)


def test_a_page_shows_the_same_and_no_markup_of_the_model(plan: baechi.Plan) -> None:
    said = summary("<GNMT>", plan, RUNS_ON, {})
    page = said.html()
    assert "&lt;GNMT&gt;" in page
    assert page.count("<tr>") == 3
    assert page.count("<rect") >= 2
    for row in said.rows:
        assert all(f"<td>{cell}</td>" in page for cell in row)


def test_a_placement_without_a_plan_has_its_devices(plan: baechi.Plan) -> None:
    del plan
    assert str(summary("GNMT", None, RUNS_ON, {})) == (
        "GNMT, placed without a plan: gpu:0 on cuda:0, gpu:1 on cuda:1"
    )


@pytest.mark.parametrize(
    ("nanoseconds", "words"),
    [(999, "999 ns"), (1000, "1.00 us"), (12_345_678, "12.3 ms"), (1_234_000_000, "1.23 s")],
)
def test_times_have_three_digits(nanoseconds: int, words: str) -> None:
    assert in_time(nanoseconds) == words
