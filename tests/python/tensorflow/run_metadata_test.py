# SPDX-License-Identifier: Apache-2.0
"""A placed GraphDef runs where it says; what TensorFlow writes of the run becomes costs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy
import pytest
import tensorflow as tf
from baechi.tensorflow.run_metadata import profile_of_cost_graph, profile_of_runs

import baechi

COSTS = "cpu=cpu"
FEED = numpy.arange(8 * 32, dtype=numpy.float32).reshape(8, 32) / 256


@pytest.fixture(scope="module")
def step(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two branches of products, joined."""
    with tf.Graph().as_default() as graph:
        x = tf.compat.v1.placeholder(tf.float32, [8, 32], name="x")
        weights = [tf.constant(FEED.T[:, :4] + i, name=f"w{i}") for i in range(4)]
        products = [tf.matmul(x, w, name=f"product{i}") for i, w in enumerate(weights)]
        tf.add_n(products, name="sum")
    path = tmp_path_factory.mktemp("step") / "step.pb"
    path.write_bytes(graph.as_graph_def(add_shapes=True).SerializeToString())
    return path


def run(definition: bytes, *, twice: bool = True) -> tuple[Any, Any]:
    """The result and the RunMetadata of a full trace."""
    graph_def = tf.compat.v1.GraphDef.FromString(definition)
    with tf.Graph().as_default() as graph:
        tf.import_graph_def(graph_def, name="")
    config = tf.compat.v1.ConfigProto(device_count={"CPU": 4}, inter_op_parallelism_threads=1)
    config.graph_options.rewrite_options.disable_meta_optimizer = True
    config.graph_options.optimizer_options.opt_level = -1
    config.graph_options.build_cost_model = 1
    options = tf.compat.v1.RunOptions(trace_level=tf.compat.v1.RunOptions.FULL_TRACE)
    with tf.compat.v1.Session(graph=graph, config=config) as session:
        for _ in range(1 + twice):
            metadata = tf.compat.v1.RunMetadata()
            result = session.run("sum:0", {"x:0": FEED}, options=options, run_metadata=metadata)
    return result, metadata


def test_a_placed_graph_def_runs_where_it_says(step: Path) -> None:
    graph = baechi.Graph.load(step, costs=COSTS)
    expert = {name: f"cpu:{i % 4}" for i, name in enumerate(graph.names)}
    plan = baechi.place_graph(graph, "4xcpu:1GiB", method="expert", expert=expert, optimize="none")
    strings = json.loads(baechi.export_plan(plan, "tensorflow"))
    definition = tf.compat.v1.GraphDef.FromString(step.read_bytes())
    for node in definition.node:
        node.device = strings[node.name]
    result, metadata = run(definition.SerializeToString())
    expected, _ = run(step.read_bytes())
    assert numpy.array_equal(result, expected)
    ran: dict[str, str] = {}
    for device in metadata.step_stats.dev_stats:
        for node in device.node_stats:
            ran[node.node_name] = device.device
    placed = [name for name in graph.names if name in ran]
    assert len(placed) >= 5
    assert len({ran[name] for name in placed}) >= 2
    for name in placed:
        assert ran[name] == strings[name], name


def test_a_traced_run_is_a_profile(step: Path, tmp_path: Path) -> None:
    graph = baechi.Graph.load(step, costs=COSTS)
    _, metadata = run(step.read_bytes())
    path = tmp_path / "run.pb"
    path.write_bytes(metadata.SerializeToString())
    profile = profile_of_runs([path, metadata], graph, kinds={"CPU": "cpu"})
    assert profile.source == "TensorFlow, median of 2 traced runs"
    product = profile.operators["product1"]
    assert product.times["cpu"] > 0
    with pytest.warns(UserWarning, match="the first is 'x'"):  # it is fed, not run
        measured = baechi.Graph.load(step, costs=[COSTS, profile])
    assert measured["product1"].times["cpu"] == product.times["cpu"]
    assert measured["product1"].outputs == [8 * 4 * 4]


def test_a_cost_graph_is_a_profile(step: Path) -> None:
    graph = baechi.Graph.load(step, costs=COSTS)
    _, metadata = run(step.read_bytes())
    assert len(metadata.cost_graph.node) > 0
    profile = profile_of_cost_graph(metadata.cost_graph.SerializeToString(), graph)
    assert "cpu" in profile.operators["product0"].times
    costs = {node.name: node.compute_cost for node in metadata.cost_graph.node}
    assert profile.operators["product0"].times["cpu"] == costs["product0"] * 1000


def test_what_is_none_is_refused(step: Path, tmp_path: Path) -> None:
    graph = baechi.Graph.load(step, costs=COSTS)
    bad = tmp_path / "bad.pb"
    bad.write_bytes(b"\x0a\xff\xff")
    with pytest.raises(baechi.InputError, match=r"bad\.pb: no RunMetadata, or cut off"):
        profile_of_runs(bad, graph)
    with pytest.raises(baechi.InputError, match="FULL_TRACE"):
        profile_of_runs(b"", graph)
    with pytest.raises(baechi.InputError, match="is in this cost graph"):
        profile_of_cost_graph(b"", graph)
    with pytest.raises(baechi.InputError, match="cannot open"):
        profile_of_runs(tmp_path / "none.pb", graph)
