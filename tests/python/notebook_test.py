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
    assert "".join(shown(explanation).itertext()) == str(explanation)
    assert isinstance(explanation["makespan"], int)
