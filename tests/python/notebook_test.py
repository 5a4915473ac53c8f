# SPDX-License-Identifier: Apache-2.0
"""What notebooks show: small tables, a plan's timeline, an explanation in words."""

from __future__ import annotations

from typing import Any
from xml.etree import ElementTree

import pytest

import baechi


def shown(value: Any) -> ElementTree.Element:
    """Return what a notebook shows, which is well-formed."""
    return ElementTree.fromstring(f"<body>{value._repr_html_()}</body>")


@pytest.fixture(scope="module")
def plan() -> baechi.Plan:
    graph = baechi.generate("layered", operators=60)
    return baechi.place_graph(graph, "2x8GiB+1x4GiB@0.5", "m-etf")


def test_a_plan_is_a_table_and_a_timeline(plan: baechi.Plan) -> None:
    body = shown(plan)
    assert [row[0].text for row in body.iter("tr")] == ["device", "gpu:0", "gpu:1", "gpu:2"]
    assert any(element.tag.endswith("svg") for element in body.iter())
    assert "step " in "".join(body.itertext())
    assert len(ElementTree.tostring(body)) < 30_000
    bars = [bar for bar in body.iter() if bar.tag.endswith("rect")]
    shown_busy = sum(float(bar.get("width", 0)) for bar in bars) / 800
    assert shown_busy == pytest.approx(sum(plan.busy_ns.values()) / plan.makespan_ns, rel=0.05)


def test_of_micro_batches_it_is_the_picture_of_passes() -> None:
    graph = baechi.generate("llama", layers=2, training=True)
    body = shown(baechi.place_graph(graph, "2x80GiB", "gpipe", micro_batches=2))
    assert len([e for e in body.iter() if e.tag.endswith("svg")]) == 1


def test_a_cluster_and_a_graph_are_tables(plan: baechi.Plan) -> None:
    assert "4.00 GiB" in "".join(shown(plan.cluster).itertext())
    many = shown(baechi.Cluster("40x8GiB"))
    assert len(list(many.iter("tr"))) == 17
    assert "... and 24 more" in "".join(many.itertext())
    assert "operators60" in "".join(shown(plan.graph).itertext())


def test_an_explanation_shows_its_words(plan: baechi.Plan) -> None:
    explanation = baechi.explain(plan)
    assert repr(explanation) == str(explanation)
    of_one = baechi.explain(plan, str(plan.graph.names[0]))
    for each, pictures in ((explanation, 1), (of_one, 0)):
        page = shown(each)
        assert [pre.text for pre in page.iter("pre")] == [str(each)]
        assert len([part for part in page.iter() if part.tag.endswith("svg")]) == pictures
    assert isinstance(explanation["makespan"], int)


def test_studies_are_tables_of_what_their_documents_say() -> None:
    graph = baechi.generate("layered", operators=60)
    cells = {}
    for name, study in {
        "what_if": baechi.what_if(graph, "2x8GiB", "m-etf"),
        "sweep": baechi.sweep(graph, "2x8GiB", memory=[1, 1e-5], methods=["m-etf"]),
        "device_worth": baechi.device_worth(graph, "2x8GiB", "m-etf"),
        "least": baechi.least(graph, "2x8GiB", "m-etf"),
        "sensitivity": baechi.sensitivity(graph, "2x8GiB", "m-etf", samples=3),
    }.items():
        rows = [[cell.text or "" for cell in row] for row in shown(study).iter("tr")]
        assert str(study) == repr(study)
        assert [line.split() for line in str(study).split("\n")] == [
            " ".join(r).split() for r in rows
        ]
        cells[name] = rows
    assert cells["what_if"][1] == ["as it is", "2", "2.75 ms", "37%", "41.6 MiB", "m-etf"]
    assert [row[0] for row in cells["what_if"][1:3]] == ["as it is", "one more gpu"]
    assert [row[3] for row in cells["sweep"]] == ["step", "2.75 ms", "does not fit"]
    assert cells["device_worth"] == [
        ["", "step"],
        ["as it is", "2.75 ms"],
        ["without gpu:0", "4.00 ms"],
        ["without gpu:1", "4.00 ms"],
    ]
    assert cells["least"][0] == ["", "memory", "devices", "step", "by"]
    assert cells["least"][1:] == [
        ["fewest devices", "", "1", "4.00 ms", "m-etf"],
        ["least memory per device", "29826 KiB", "", "5.38 ms", "m-etf"],
    ]
    assert [row[0] for row in cells["sensitivity"][1:4]] == [
        "costs are known",
        "min",
        "lower_quartile",
    ]
