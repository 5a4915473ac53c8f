# SPDX-License-Identifier: Apache-2.0
"""The JSON Schemas in docs/reference agree with what the command reads and writes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest

import baechi
from tests.conftest import Run

Validate = Callable[..., bool]

# What a schema cannot say: it needs two places of the document, or exact decimals, or units.
BEYOND_THE_SCHEMA = {
    "cluster_capacity_zero.json",
    "cluster_device_twice.json",
    "cluster_link_to_itself.json",
    "cluster_link_unknown_device.json",
    "cluster_link_unknown_kind.json",
    "cluster_pair_without_link.json",
    "cluster_speed_too_fine.json",
    "graph_after_unknown_operator.json",
    "graph_colocated_pins_differ.json",
    "graph_cycle.json",
    "graph_cycle_of_control_edges.json",
    "graph_field_twice.json",
    "graph_forward_itself.json",
    "graph_forward_unknown_operator.json",
    "graph_input_index_out_of_range.json",
    "graph_input_of_operator_without_outputs.json",
    "graph_input_port_out_of_range.json",
    "graph_input_unknown_operator.json",
    "graph_memory_overflow.json",
    "graph_name_twice.json",
    "graph_operator_field_twice.json",
    "graph_per_step_between_micro_batches.json",
    "graph_reads_itself.json",
    "graph_time_below_nanosecond.json",
    "graph_time_kind_twice.json",
    "graph_waits_for_itself.json",
    "graph_written_by_step.json",
    "graph_written_by_two.json",
    "graph_written_is_no_variable.json",
    "placement_operator_twice.json",
    "plan_cluster_after_operators.json",
    "plan_cluster_without_links.json",
    "plan_device_missing.json",
    "plan_device_too_many.json",
    "plan_devices_in_other_order.json",
    "plan_gap_without_bounds.json",
    "plan_gap_wrong.json",
    "plan_method_peaks_too_few.json",
    "plan_operator_count_differs.json",
    "plan_operator_ends_before_start.json",
    "plan_operator_on_unknown_device.json",
    "plan_operator_twice.json",
    "plan_peak_operator_unknown.json",
    "plan_recomputed_behind_operators.json",
    "plan_recomputed_without_second_run.json",
    "plan_run_peak_partly.json",
    "plan_transfer_before_request.json",
    "plan_transfer_ends_before_start.json",
    "plan_transfer_of_unknown_operator.json",
    "plan_transfer_to_itself.json",
    "profile_operator_twice.json",
    "profile_time_kind_twice.json",
}


@pytest.fixture(scope="module")
def is_valid(root: Path) -> Validate:
    """Say whether a document keeps the schema that its file name or "format" calls for."""
    schemas = {
        kind: json.loads((root / "docs" / "reference" / f"{kind}.schema.json").read_text())
        for kind in ("graph", "cluster", "plan", "placement", "profile")
    }
    for schema in schemas.values():
        jsonschema.Draft202012Validator.check_schema(schema)
    validators = {kind: jsonschema.Draft202012Validator(s) for kind, s in schemas.items()}

    def check(document: Any, kind: str | None = None) -> bool:
        kind = kind or document["format"].removeprefix("baechi-")
        return bool(validators[kind].is_valid(document))

    return check


def test_what_two_schemas_define_is_the_same(root: Path) -> None:
    # Each stands by itself, so that a document can be checked with one file.
    known: dict[str, Any] = {}
    for path in sorted((root / "docs" / "reference").glob("*.schema.json")):
        text = path.read_text()
        assert text.count("urn:baechi:") == 1, path.name
        for name, definition in json.loads(text).get("$defs", {}).items():
            if name not in ("operator", "sizes", "size"):
                assert known.setdefault(name, definition) == definition, (path.name, name)


@pytest.mark.parametrize(
    "name",
    [
        "graph_small.json",
        "graph_forward_references.json",
        "cluster_two_hosts.json",
        "plan_small.json",
        "placement_small.json",
        "profile_small.json",
    ],
)
def test_good_files_keep_the_schema(run: Run, data: Path, is_valid: Validate, name: str) -> None:
    path = data / "good" / name
    run("check", path)
    assert is_valid(json.loads(path.read_text()))


@pytest.mark.parametrize(
    "name",
    ["graph_small.json", "graph_forward_references.json", "dnn_partitioning.json"],
)
def test_written_graphs_keep_the_schema(
    run: Run, data: Path, is_valid: Validate, name: str
) -> None:
    result = run("convert", data / "good" / name, "-")
    assert is_valid(json.loads(result.stdout))


@pytest.mark.parametrize(
    "cluster",
    [
        "4x8GiB",
        "2x24GiB+2x8GiB@0.6",
        "2xgpu:24GiB+1xcpu:64GB",
        "paper",
        "cluster_two_hosts.json",
        "dnn_partitioning.json",
    ],
)
def test_written_clusters_keep_the_schema(
    run: Run, data: Path, is_valid: Validate, cluster: str
) -> None:
    path = data / "good" / cluster
    result = run("convert", "--to", "cluster", path if path.exists() else cluster, "-")
    assert is_valid(json.loads(result.stdout))


@pytest.mark.parametrize(
    "how", [{"sends": "blocking"}, {"sends": "1us,2us"}, {"host_time": "1us,2us,3us"}]
)
def test_what_hosts_and_messages_take_keeps_the_schema(
    is_valid: Validate, how: dict[str, Any]
) -> None:
    assert is_valid(json.loads(baechi.Cluster("2x8GiB", **how).to_json()))


def test_written_profiles_keep_the_schema(data: Path, is_valid: Validate) -> None:
    profile = baechi.Profile.load(data / "good" / "profile_small.json")
    assert is_valid(json.loads(profile.to_json()))


def test_bad_files_break_the_schema_unless_it_cannot_say_so(data: Path, is_valid: Validate) -> None:
    accepted = set()
    for path in (data / "bad").glob("*_*.json"):
        kind = path.name.split("_")[0]
        if kind in ("graph", "cluster", "plan", "placement", "profile") and is_valid(
            json.loads(path.read_text()), kind
        ):
            accepted.add(path.name)
    assert accepted == BEYOND_THE_SCHEMA
