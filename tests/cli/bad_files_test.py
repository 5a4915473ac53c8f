# SPDX-License-Identifier: Apache-2.0
"""Every file in tests/data/bad is refused with exit code 2 and one line that says why."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.conftest import Run

# What the line must say. One row per file; the file's name says the defect.
REASONS = {
    "bare_exponent.json": "malformed number",
    "bare_point.json": "malformed number",
    "binary.bin": "not a graph: expected graph.json",
    "byte_order_mark.json": "starts with a byte order mark: save it as plain UTF-8",
    "cluster_capacity_fraction.json": "expected a whole number, found a fraction",
    "cluster_capacity_in_gigabits.json": "memory '8Gb' needs a unit",
    "cluster_capacity_missing.json": 'the field "capacity" is missing',
    "cluster_capacity_negative.json": "a number of bytes cannot be negative",
    "cluster_capacity_without_unit.json": "memory '8' needs a unit",
    "cluster_capacity_zero.json": "device 'a' has no memory: 0 bytes",
    "cluster_communication_unknown.json": 'expected "parallel", "sequential" or "duplex", found',
    "cluster_device_kind_empty.json": "device 'a' has an empty kind",
    "cluster_device_name_empty.json": "a device has an empty name",
    "cluster_device_twice.json": "duplicate device name 'a'",
    "cluster_device_unknown_field.json": "unknown field",
    "cluster_host_number.json": "expected a string, found a number",
    "cluster_link_bandwidth_without_time.json": "bandwidth '6GB' needs a unit",
    "cluster_link_bandwidth_zero.json": "the default link has a bandwidth that is not positive",
    "cluster_link_both_ways_without_ends.json": '"both_ways" needs the scope "kinds" or "pair"',
    "cluster_link_channel_empty.json": "the default link names an empty channel",
    "cluster_link_ends_without_scope.json": '"from" needs the scope "kinds" or "pair"',
    "cluster_link_latency_missing.json": 'the field "latency" is missing',
    "cluster_link_latency_negative.json": "a time cannot be negative",
    "cluster_link_scope_missing.json": 'the field "scope" is missing',
    "cluster_link_scope_unknown.json": 'expected "default", "other-host", "same-host", "kinds',
    "cluster_link_to_itself.json": "the link from 'gpu:0' to 'gpu:0' joins a device with itself",
    "cluster_link_unknown_device.json": "the link from 'gpu:0' to 'gpu:7' names an unknown",
    "cluster_link_unknown_kind.json": "the link between kinds 'gpu' and 'tpu' names an unknown",
    "cluster_link_without_ends.json": 'the field "from" is missing',
    "cluster_links_object.json": "expected an array, found an object",
    "cluster_no_devices.json": "the cluster has no devices",
    "cluster_pair_without_link.json": "no link rule covers 'gpu:0' to 'gpu:1': add a default link",
    "cluster_speed_negative.json": "a speed cannot be negative",
    "cluster_speed_text.json": "expected a number, found a string",
    "cluster_speed_too_fine.json": "a speed has at most six decimals",
    "cluster_speed_zero.json": "device 'a' has a speed that is not positive",
    "cluster_unknown_field.json": "unknown field",
    "cluster_version_0.json": "version 0 is not supported: this baechi reads version 1",
    "comment.json": "JSON has no comments",
    "control_character.json": "a control character in a string: write it as an escape",
    "dnn_partitioning_cost_infinite.json": "the number is too large or too small for a double",
    "dnn_partitioning_costs_differ.json": "node 'a': the costs of its outgoing edges differ",
    "dnn_partitioning_cycle.json": "the graph has a cycle of 2 operators: 'a' -> 'b' -> 'a'",
    "dnn_partitioning_edge_to_nowhere.json": "there is no node with the id 9",
    "dnn_partitioning_field_twice.json": "the field occurs twice",
    "dnn_partitioning_flag_two.json": "expected true, false, 1 or 0",
    "dnn_partitioning_id_twice.json": "the id 0 occurs twice",
    "dnn_partitioning_latency_negative.json": "cannot be negative",
    "dnn_partitioning_latency_too_large.json": "node 'a': time is too large",
    "dnn_partitioning_name_twice.json": "duplicate operator name 'a'",
    "dnn_partitioning_no_nodes.json": "there is no node with the id 0",
    "dnn_partitioning_self_loop.json": "operator 'a' reads its own output",
    "dnn_partitioning_size_missing.json": 'the field "size" is missing',
    "dnn_partitioning_size_text.json": "expected a number, found a string",
    "dnn_partitioning_too_many_devices.json": "more than 1024 devices",
    "empty.json": "the file is empty",
    "graph_after_unknown_operator.json": "there is no operator 'x'",
    "graph_after_with_port.json": "expected an operator's name or index, found an array",
    "graph_backward_number.json": "expected true or false, found a number",
    "graph_batch_size_fraction.json": "expected a whole number, found a fraction",
    "graph_batch_size_negative.json": "the batch size must be positive, not -4",
    "graph_batch_size_zero.json": "the batch size must be positive, not 0",
    "graph_colocate_empty_name.json": "operator 'b' names an empty colocation group",
    "graph_colocate_number.json": "expected a string, found a number",
    "graph_colocate_text.json": "expected an array, found a string",
    "graph_colocated_pins_differ.json": "operators 'a' and 'b' are colocated but pinned to",
    "graph_cycle.json": "the graph has a cycle of 3 operators: 'a' -> 'b' -> 'c' -> 'a'",
    "graph_cycle_of_control_edges.json": "the graph has a cycle of 2 operators: 'a' -> 'b' -> 'a'",
    "graph_device_empty.json": "operator 'b' is pinned to a device without a name",
    "graph_device_number.json": "expected a string, found a number",
    "graph_field_twice.json": "the field occurs twice",
    "graph_format_missing.json": "not a graph: expected graph.json",
    "graph_format_number.json": "expected a string, found a number",
    "graph_format_unknown.json": 'the "format" is neither "baechi-graph", "baechi-cluster" nor',
    "graph_forward_array.json": "expected an operator's name or index, found an array",
    "graph_forward_but_not_backward.json": "an operator with a forward operator cannot have",
    "graph_forward_itself.json": "operator 'b' is its own forward operator",
    "graph_forward_unknown_operator.json": "there is no operator 'x'",
    "graph_input_empty_array.json": "expected [operator, port], found an empty array",
    "graph_input_index_negative.json": "an operator's index cannot be negative",
    "graph_input_index_out_of_range.json": "there is no operator number 7: the graph has 2",
    "graph_input_null.json": "expected an operator's name or index",
    "graph_input_object.json": "expected an operator's name or index",
    "graph_input_of_operator_without_outputs.json": "the operator it names has no output 0",
    "graph_input_one_item.json": "expected [operator, port], found one item",
    "graph_input_port_huge.json": "the output port is too large",
    "graph_input_port_negative.json": "an output port cannot be negative",
    "graph_input_port_out_of_range.json": "the operator it names has no output 1",
    "graph_input_three_items.json": "expected [operator, port], found a third item",
    "graph_input_unknown_operator.json": "there is no operator 'aa'",
    "graph_inputs_text.json": "expected an array, found a string",
    "graph_kind_number.json": "expected a string, found a number",
    "graph_memory_gib_misspelt.json": "memory '4Gib' needs a unit",
    "graph_memory_mode_unknown.json": 'expected "dataflow" or "retain", found "Dataflow"',
    "graph_memory_negative.json": "a number of bytes cannot be negative",
    "graph_memory_number.json": "expected an object, found a number",
    "graph_memory_overflow.json": "memory '9999999999 GiB' is too large",
    "graph_memory_part_unknown.json": "unknown field",
    "graph_name_empty.json": "operator number 0 has an empty name",
    "graph_name_missing.json": 'the field "name" is missing',
    "graph_name_null.json": "expected a string, found null",
    "graph_name_number.json": "expected a string, found a number",
    "graph_name_twice.json": "duplicate operator name 'a'",
    "graph_operator_field_twice.json": "the field occurs twice",
    "graph_operator_not_object.json": "expected an object, found a string",
    "graph_operator_null.json": "expected an object, found null",
    "graph_operator_unknown_field.json": "unknown field",
    "graph_operators_empty.json": "the graph has no operators",
    "graph_operators_missing.json": 'the field "operators" is missing',
    "graph_operators_object.json": "expected an array, found an object",
    "graph_output_in_bits.json": "memory '8Gbit' needs a unit",
    "graph_output_negative.json": "a number of bytes cannot be negative",
    "graph_output_text.json": "memory 'many' does not start with a number",
    "graph_outputs_number.json": "expected an array, found a number",
    "graph_reads_itself.json": "operator 'b' reads its own output",
    "graph_time_array.json": "expected a number, found an array",
    "graph_time_below_nanosecond.json": "time '0.2ns' is not a whole number of the smallest unit",
    "graph_time_boolean.json": "expected a number, found a boolean",
    "graph_time_fraction.json": "expected a whole number, found a fraction",
    "graph_time_huge.json": "the number exceeds 63 bits",
    "graph_time_kind_empty.json": "operator 'a' has a compute time for a kind without a name",
    "graph_time_kind_twice.json": "the field occurs twice",
    "graph_time_kinds_empty.json": "has no compute time for any kind of device",
    "graph_time_missing.json": 'the field "time" is missing',
    "graph_time_negative.json": "a time cannot be negative",
    "graph_time_negative_text.json": "time '-5us' is negative",
    "graph_time_null.json": "expected a number, found null",
    "graph_time_of_kind_negative.json": "a time cannot be negative",
    "graph_time_overflow.json": "the number exceeds 63 bits",
    "graph_time_too_many_digits.json": "the number has too many digits or too large an exponent",
    "graph_time_unit_only.json": "time 'us' does not start with a number",
    "graph_time_unit_unknown.json": "time '5 sec' needs a unit",
    "graph_time_without_unit.json": "time '5' needs a unit",
    "graph_unknown_field.json": "unknown field",
    "graph_version_2.json": "version 2 is not supported: this baechi reads version 1",
    "graph_version_missing.json": 'the field "version" is missing',
    "graph_version_text.json": "expected a number, found a string",
    "graph_waits_for_itself.json": "operator 'b' waits for itself",
    "gzip.json": "is compressed (gzip): unpack it first",
    "hexadecimal.json": "expected ',' or '}', found 'x'",
    "infinity.json": "NaN and infinity are not numbers in JSON",
    "invalid_utf8.json": "not UTF-8",
    "latin_1.json": "not UTF-8",
    "leading_zero.json": "malformed number",
    "line_break_in_string.json": "a control character in a string: write it as an escape",
    "lone_surrogate.json": "half of a surrogate pair",
    "missing_colon.json": "expected ':', found a number",
    "missing_comma.json": "expected ',' or '}', found a string",
    "nan.json": "NaN and infinity are not numbers in JSON",
    "negative_infinity.json": "NaN and infinity are not numbers in JSON",
    "nested_too_deeply.json": "nested too deeply",
    "only_space.json": "the file is empty",
    "overlong_utf8.json": "not UTF-8",
    "pipedream_cost_missing.txt": "the cost 'parameter_size' is missing",
    "pipedream_cost_twice.txt": "the cost occurs twice",
    "pipedream_cost_unknown.txt": "unknown cost 'parameters'",
    "pipedream_cost_without_value.txt": "expected 'name=value'",
    "pipedream_cycle.txt": "the graph has a cycle of 2 operators: 'node1' -> 'node2' -> 'node1'",
    "pipedream_edge_before_node.txt": "there is no node 'node2' above this line",
    "pipedream_edge_to_itself.txt": "operator 'node1' reads its own output",
    "pipedream_edge_to_unknown_node.txt": "there is no node 'node3' above this line",
    "pipedream_edge_without_separator.txt": "expected an edge 'node -- node'",
    "pipedream_edge_without_target.txt": "expected an edge 'node -- node'",
    "pipedream_edges_only.txt": "there is no node 'node1' above this line",
    "pipedream_name_empty.txt": "expected 'node -- description -- forward_compute_time=",
    "pipedream_no_costs.txt": "expected 'node -- description -- forward_compute_time=...', or an",
    "pipedream_node_twice.txt": "duplicate operator name 'node1'",
    "pipedream_not_utf8.txt": "not UTF-8",
    "pipedream_sizes_text.txt": "expected a number, found 'x'",
    "pipedream_sizes_without_bracket.txt": "expected ']' at the end of the sizes",
    "pipedream_time_nan.txt": "expected a number, found 'nan'",
    "pipedream_time_negative.txt": "a cost cannot be negative",
    "pipedream_time_overflow.txt": "the number is too large",
    "pipedream_time_text.txt": "expected a number, found 'fast'",
    "pipedream_zero_byte.txt": "not a graph: expected graph.json",
    "plan_bound_without_value.json": 'the field "value" is missing',
    "plan_cluster_after_operators.json": 'needs "cluster" before it, whose devices it names',
    "plan_cluster_missing.json": 'needs "cluster" before it, whose devices it names',
    "plan_cluster_with_format.json": "unknown field",
    "plan_cluster_without_links.json": "no link rule covers 'gpu:0' to 'gpu:1': add a default link",
    "plan_device_missing.json": "expected one entry for each of the cluster's 2 devices, found 1",
    "plan_device_too_many.json": "more devices than the cluster has",
    "plan_devices_in_other_order.json": "the devices are not in the cluster's order",
    "plan_gap_without_bounds.json": "is not makespan / first bound - 1",
    "plan_gap_wrong.json": "is not makespan / first bound - 1",
    "plan_makespan_missing.json": 'the field "makespan" is missing',
    "plan_memory_mode_unknown.json": 'expected "dataflow" or "retain", found "keep"',
    "plan_method_peaks_too_few.json": "expected one peak for each of the cluster's devices",
    "plan_notes_text.json": "expected an array, found a string",
    "plan_operator_count_differs.json": "the plan places 2 operators, not 3",
    "plan_operator_ends_before_start.json": "ends before it starts",
    "plan_operator_on_unknown_device.json": "the cluster has no device 'gpu:2'",
    "plan_operator_start_missing.json": 'the field "start" is missing',
    "plan_operator_start_negative.json": "a time cannot be negative",
    "plan_operator_twice.json": "operator 'a' is placed twice",
    "plan_operator_unknown_field.json": "unknown field",
    "plan_peak_negative.json": "a number of bytes cannot be negative",
    "plan_peak_operator_unknown.json": "the plan places no operator 'z'",
    "plan_transfer_before_request.json": "starts before it is requested",
    "plan_transfer_ends_before_start.json": "ends before it starts",
    "plan_transfer_of_unknown_operator.json": "the plan places no operator 'z'",
    "plan_transfer_port_text.json": "expected a number, found a string",
    "plan_transfer_tensor_number.json": "expected an array, found a number",
    "plan_transfer_to_itself.json": "a transfer from a device to itself",
    "plan_version_9.json": "version 9 is not supported: this baechi reads version 1",
    "plus_sign.json": "expected a value, found '+'",
    "short_unicode_escape.json": "\\u needs four hexadecimal digits",
    "single_quotes.json": "JSON strings stand in double quotes",
    "surrogate_in_utf8.json": "not UTF-8",
    "top_level_array.json": "not a graph: expected graph.json",
    "top_level_number.json": "not a graph: expected graph.json",
    "top_level_string.json": "not a graph: expected graph.json",
    "trailing_comma.json": "a comma before the closing bracket",
    "trailing_text.json": "more text after the end of the document",
    "truncated_after_colon.json": "the file ends where a value should be: is it cut off?",
    "truncated_array.json": "the file ends where ',' or ']' should be: is it cut off?",
    "truncated_key.json": "the string does not end: is the file cut off?",
    "truncated_number.json": "the file ends where ',' or '}' should be: is it cut off?",
    "truncated_object.json": "the file ends where ',' or '}' should be: is it cut off?",
    "truncated_string.json": "the string does not end: is the file cut off?",
    "two_documents.json": "more text after the end of the document",
    "two_points.json": "malformed number",
    "underscore.json": "malformed number",
    "unknown_escape.json": "unknown escape in a string",
    "unquoted_key.json": "expected a field name in double quotes, found 'v'",
    "utf_16.json": "is UTF-16: save it as plain UTF-8",
    "words.txt": "not a graph: expected graph.json",
}


def test_the_table_has_every_file(data: Path) -> None:
    assert sorted(path.name for path in (data / "bad").iterdir()) == sorted(REASONS)
    assert len(REASONS) >= 60


@pytest.mark.parametrize("name", sorted(REASONS))
def test_bad_file(run: Run, data: Path, name: str) -> None:
    path = data / "bad" / name
    result = run("check", path)
    assert result.returncode == 2
    assert result.stdout == ""
    assert result.stderr.startswith(f"baechi: {path}")
    assert result.stderr.count("\n") == 1
    assert REASONS[name] in result.stderr
    assert result.stderr.isprintable() or result.stderr[:-1].isprintable()
    assert len(result.stderr) < 400 + len(str(path))


# Without a place: nothing of the file could be read as ours, or no one place is at fault.
NO_PLACE = re.compile(
    r"not a graph|the file is empty|is neither|outgoing edges|has a cycle|duplicate operator|"
    r"reads its own output|is too large"
)


@pytest.mark.parametrize("name", sorted(REASONS))
def test_bad_file_has_a_place(run: Run, data: Path, name: str) -> None:
    words = run("check", data / "bad" / name).stderr
    if not NO_PLACE.search(words):
        pattern = r":\d+:\d+: \$" if name.endswith(".json") else r":\d+:\d+: "
        assert re.search(pattern, words)


def test_check_reports_every_file_and_fails_if_one_is_bad(run: Run, data: Path) -> None:
    good = data / "good" / "graph_small.json"
    result = run("check", data / "bad" / "nan.json", good, data / "bad" / "empty.json")
    assert result.returncode == 2
    assert result.stdout == f"{good}: graph, 7 operators, 10 edges\n"
    assert result.stderr.count("\n") == 2
