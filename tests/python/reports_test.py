# SPDX-License-Identifier: Apache-2.0
"""report, trace and export_plan from Python: what they return and refuse."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

import baechi


@pytest.fixture(scope="module")
def plan() -> baechi.Plan:
    graph = baechi.generate("llama", layers=4)
    return baechi.place_graph(graph, "2x80GiB", method="single")


def test_report_and_trace_write_files_and_return_their_paths(
    plan: baechi.Plan, tmp_path: Path
) -> None:
    page = baechi.report(plan, tmp_path / "report.html")
    assert page == tmp_path / "report.html"
    assert page.read_text().startswith("<!doctype html>")
    assert baechi.report(plan, page, other=plan, labels=["before", "after"]) == page
    assert '"label":"after"' in page.read_text()
    trace = baechi.trace(plan, str(tmp_path / "trace.json"))
    assert len(json.loads(trace.read_text())["traceEvents"]) > len(plan.graph)


def test_a_report_refuses_what_it_cannot_show(plan: baechi.Plan, tmp_path: Path) -> None:
    path = tmp_path / "x.html"
    other = baechi.place_graph(baechi.generate("chain", operators=4), "2x8GiB", method="single")
    with pytest.raises(baechi.InputError, match="different graphs"):
        baechi.report(plan, path, other=other)
    with pytest.raises(baechi.InputError, match="each with a label"):
        baechi.report(plan, path, labels=["one", "too many"])
    with pytest.raises(baechi.InputError, match="no_such_folder"):
        baechi.report(plan, tmp_path / "no_such_folder" / "x.html")
    assert not path.exists()


def test_a_generated_step_of_training_is_more_than_a_forward_pass() -> None:
    forward, step = (baechi.generate("llama", layers=2, training=each) for each in (False, True))
    assert len(step) > 2 * len(forward)
    assert len(forward) == len(baechi.generate("llama", layers=2))
    with pytest.raises(baechi.InputError, match="training"):
        baechi.generate("layered", training=True)


def test_every_export_format_says_something(plan: baechi.Plan) -> None:
    formats = baechi.export_formats()
    assert {"csv", "device-map", "svg", "tensorflow", "vllm", "llama-cpp"} <= set(formats)
    step = baechi.place_graph(
        baechi.generate("llama", layers=4, training=True), "2x80GiB", "single"
    )
    for name in formats:
        assert baechi.export_plan(step if name == "torch-pipelining" else plan, name)
    with pytest.raises(baechi.InputError, match="plan a step of training"):
        baechi.export_plan(plan, "torch-pipelining")
    assert baechi.export_plan(plan, "torch-pipelining", "split-spec") == "{}\n"
    with pytest.raises(baechi.InputError, match="no form 'x', only schedule, split-spec, module-"):
        baechi.export_plan(plan, "torch-pipelining", "x")
    with pytest.raises(baechi.InputError, match="'torch-pipelining' has the form split-spec"):
        baechi.export_plan(plan, "split-spec")
    # Its reader looks for a unit, which "cuda:0,*" has not.
    assert re.fullmatch(r"cuda:0,\d+mb\*\n", baechi.export_plan(plan, "comfyui"))
    assert baechi.export_plan(plan, "megatron").endswith('-layout "Et*4L"\n')
    assert baechi.export_plan(plan, "vllm") == "VLLM_PP_LAYER_PARTITION=4\n"
    assert json.loads(baechi.export_plan(plan, "device-map")) == {"": 0}
    with pytest.raises(baechi.InputError, match="no format 'excel'"):
        baechi.export_plan(plan, "excel")
