# SPDX-License-Identifier: Apache-2.0
"""Costs from what TensorFlow wrote of its own runs: RunMetadata and CostGraphDef (Paper 4.1)."""

from __future__ import annotations

import json
import os
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from google.protobuf.message import DecodeError
from tensorflow.core.framework import cost_graph_pb2
from tensorflow.core.protobuf import config_pb2

from baechi._core import Graph, InputError, Profile
from baechi.tensorflow.step_stats import Measured, bytes_of, measured_steps

Source = Any  # a RunMetadata, its bytes, or the path of a file with them


def profile_of_runs(
    runs: Source | Sequence[Source],
    graph: Graph,
    *,
    kinds: Mapping[str, str] | None = None,
) -> Profile:
    """Return what traced runs measured: medians over them.

    Args:
        runs: RunMetadata of one or more runs with ``trace_level=FULL_TRACE``: messages, bytes, or
            files. The first run of a session compiles and allocates: leave it out.
        graph: The graph that ran, as ``Graph.load("step.pb", ...)`` reads it.
        kinds: What TensorFlow's kinds of devices are called in the cluster: ``{"GPU": "a100"}``.

    Raises:
        InputError: A file is no RunMetadata, or nothing of the graph was measured.

    """
    sources = runs if isinstance(runs, (list, tuple)) else [runs]
    metadata = [_message(source, config_pb2.RunMetadata) for source in sources]
    operators = {name: graph[name].kind for name in graph.names}
    steps = measured_steps([each.step_stats for each in metadata], operators)
    rows = []
    for name in graph.names:
        found = [step[name] for step in steps if name in step]
        if found:
            rows.append(_row(name, found, kinds or {}))
    if not rows:
        raise InputError(
            "no operator of the graph is in these runs: run the step with "
            "tf.compat.v1.RunOptions(trace_level=tf.compat.v1.RunOptions.FULL_TRACE)"
        )
    count = f"{len(metadata)} traced run" + ("s" if len(metadata) > 1 else "")
    return _profile(rows, f"TensorFlow, median of {count}", graph.batch_size)


def profile_of_cost_graph(
    costs: Source, graph: Graph, *, kinds: Mapping[str, str] | None = None
) -> Profile:
    """Return what TensorFlow's cost model says.

    Args:
        costs: A CostGraphDef, such as ``run_metadata.cost_graph``: a message, bytes, or a file.
        graph: The graph that it is of.
        kinds: What TensorFlow's kinds of devices are called in the cluster.

    Raises:
        InputError: The file is no CostGraphDef, or nothing of the graph is in it.

    """
    message = _message(costs, cost_graph_pb2.CostGraphDef)
    known = set(graph.names)
    rows: dict[str, dict[str, Any]] = {}
    for node in message.node:
        if node.name not in known or node.name in rows:
            continue
        kind = node.device.rpartition("/device:")[2].partition(":")[0] or "CPU"
        sizes = [max(0, int(output.size)) for output in node.output_info]
        rows[node.name] = {
            "name": node.name,
            "time": {(kinds or {}).get(kind, kind.lower()): int(node.compute_cost) * 1000},
            "memory": {"temporary": max(0, int(node.temporary_memory_size))},
            "outputs": [
                max(size, bytes_of(output.dtype, _known(output.shape)))
                for size, output in zip(sizes, node.output_info, strict=True)
            ],
        }
    if not rows:
        raise InputError(
            "no operator of the graph is in this cost graph: take that of a run of the same graph"
        )
    return _profile(list(rows.values()), "TensorFlow's cost model", graph.batch_size)


def _known(shape: Any) -> list[int]:
    """The sizes of a shape; nothing in all where one is not known."""
    sizes = [int(dim.size) for dim in shape.dim]
    return [0] if shape.unknown_rank or any(size < 0 for size in sizes) else sizes


def _row(name: str, found: Sequence[Measured], kinds: Mapping[str, str]) -> dict[str, Any]:
    kind = kinds.get(found[0].kind, found[0].kind.lower())
    row: dict[str, Any] = {
        "name": name,
        "time": {kind: round(statistics.median(run.time for run in found))},
        "memory": {"temporary": max(run.temporary for run in found)},
    }
    ports = range(1 + max((port for run in found for port in run.transferred), default=-1))
    if ports:
        row["outputs"] = [
            max((run.transferred[port] for run in found if port in run.transferred), default=None)
            for port in ports
        ]
    return row


def _message(source: Source, kind: Any) -> Any:
    if isinstance(source, kind):
        return source
    place = "the bytes given"
    if isinstance(source, (str, os.PathLike)):
        place = os.fspath(source)
        try:
            source = Path(source).read_bytes()
        except OSError as error:
            raise InputError(f"{place}: cannot open: {error.strerror}") from None
    message = kind()
    try:
        message.ParseFromString(source)
    except DecodeError:
        raise InputError(f"{place}: no {kind.DESCRIPTOR.name}, or cut off") from None
    return message


def _profile(rows: list[dict[str, Any]], source: str, batch: int | None) -> Profile:
    document: dict[str, Any] = {"format": "baechi-profile", "version": 1, "source": source}
    if batch is not None:
        document["batch_size"] = batch
    document["operators"] = rows
    return Profile.from_json(json.dumps(document))
