// SPDX-License-Identifier: Apache-2.0
// Graphs from and to NumPy arrays, without a Python loop per operator.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "baechi/base/error.h"
#include "baechi/graph/op_graph_builder.h"
#include "bindings.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace baechi::python {
namespace {

using Column = nb::ndarray<const std::int64_t, nb::ndim<1>, nb::device::cpu>;
using Flags = nb::ndarray<const bool, nb::ndim<1>, nb::device::cpu>;
using TimeColumns = std::vector<std::pair<std::string, Column>>;  // by device kind

void require_size(std::size_t found, std::size_t size, const std::string& name) {
  if (found != size)
    throw InputError(name + " has " + std::to_string(found) + " entries, expected " +
                     std::to_string(size));
}

std::size_t size_of(const std::optional<Column>& column) {
  return column.has_value() ? column->shape(0) : 0;
}

// An index that an array holds, checked.
std::size_t index_at(const Column& column, std::size_t i, std::size_t limit, const char* name) {
  const std::int64_t value = column(i);
  if (value < 0 || static_cast<std::size_t>(value) >= limit)
    throw InputError(std::string(name) + "[" + std::to_string(i) + "] is " + std::to_string(value) +
                     ", expected 0 to " + std::to_string(limit) + " (exclusive)");
  return static_cast<std::size_t>(value);
}

struct Columns {  // as given; absent ones are zero or empty
  const std::vector<std::string>& names;
  TimeColumns times;
  std::optional<std::vector<std::string>> kinds;
  std::optional<std::vector<std::optional<std::string>>> devices;
  std::optional<Flags> backward, per_step, recompute, variable, random;
  std::optional<Column> permanent, temporary, forward, groups, tensor_producer, tensor_bytes,
      edge_tensor, edge_to, control_from, control_to, write_op, write_variable;
};

void check_sizes(const Columns& columns) {
  const std::size_t n = columns.names.size();
  const auto require = [n](const auto& column, const char* name) {
    if (column.has_value()) require_size(column->shape(0), n, name);
  };
  require(columns.permanent, "permanent");
  require(columns.temporary, "temporary");
  require(columns.forward, "forward");
  require(columns.groups, "groups");
  require(columns.backward, "backward");
  require(columns.per_step, "per_step");
  require(columns.recompute, "recompute");
  require(columns.variable, "variable");
  require(columns.random, "random");
  for (const auto& [kind, time] : columns.times) require_size(time.shape(0), n, "times of " + kind);
  if (columns.kinds.has_value()) require_size(columns.kinds->size(), n, "kinds");
  if (columns.devices.has_value()) require_size(columns.devices->size(), n, "devices");
}

void add_operators(OpGraphBuilder& builder, const Columns& columns) {
  const std::size_t n = columns.names.size();
  for (std::size_t i = 0; i < n; ++i) {
    OperatorSpec spec{.name = columns.names[i]};
    if (columns.kinds.has_value()) spec.kind = (*columns.kinds)[i];
    if (columns.permanent.has_value()) spec.permanent = Bytes((*columns.permanent)(i));
    if (columns.temporary.has_value()) spec.temporary = Bytes((*columns.temporary)(i));
    if (columns.backward.has_value()) spec.backward = (*columns.backward)(i);
    if (columns.per_step.has_value()) spec.per_step = (*columns.per_step)(i);
    if (columns.recompute.has_value()) spec.recompute = (*columns.recompute)(i);
    if (columns.variable.has_value()) spec.variable = (*columns.variable)(i);
    if (columns.random.has_value()) spec.random = (*columns.random)(i);
    if (columns.devices.has_value()) spec.pin = (*columns.devices)[i];
    builder.add_operator(spec);
  }
  for (const auto& [kind, times] : columns.times)
    for (std::size_t i = 0; i < n; ++i)
      if (times(i) != -1) builder.set_time(OpId(i), kind, Time(times(i)));
  for (std::size_t i = 0; i < size_of(columns.forward); ++i)
    if ((*columns.forward)(i) != -1)
      builder.set_forward(OpId(i), OpId(index_at(*columns.forward, i, n, "forward")));
  for (std::size_t i = 0; i < size_of(columns.groups); ++i)
    if ((*columns.groups)(i) != -1)
      builder.add_to_group(OpId(i),
                           "group" + std::to_string(index_at(*columns.groups, i, n, "groups")));
}

void add_edges(OpGraphBuilder& builder, const Columns& columns) {
  const std::size_t n = columns.names.size();
  const std::size_t tensors = size_of(columns.tensor_producer);
  std::vector<TensorId> tensor;
  if (tensors > 0 || columns.tensor_bytes.has_value()) {
    if (!columns.tensor_bytes.has_value()) throw InputError("tensor_bytes is missing");
    require_size(size_of(columns.tensor_bytes), tensors, "tensor_bytes");
  }
  for (std::size_t t = 0; t < tensors; ++t)
    tensor.push_back(
        builder.add_output(OpId(index_at(*columns.tensor_producer, t, n, "tensor_producer")),
                           Bytes((*columns.tensor_bytes)(t))));
  if (columns.edge_to.has_value() != columns.edge_tensor.has_value())
    throw InputError("edge_tensor and edge_to go together");
  if (columns.edge_to.has_value()) {
    require_size(size_of(columns.edge_tensor), columns.edge_to->shape(0), "edge_tensor");
    for (std::size_t e = 0; e < columns.edge_to->shape(0); ++e)
      builder.connect(tensor[index_at(*columns.edge_tensor, e, tensors, "edge_tensor")],
                      OpId(index_at(*columns.edge_to, e, n, "edge_to")));
  }
  if (columns.control_from.has_value() != columns.control_to.has_value())
    throw InputError("control_from and control_to go together");
  if (columns.control_to.has_value()) {
    require_size(size_of(columns.control_from), columns.control_to->shape(0), "control_from");
    for (std::size_t e = 0; e < columns.control_to->shape(0); ++e)
      builder.add_control_edge(OpId(index_at(*columns.control_from, e, n, "control_from")),
                               OpId(index_at(*columns.control_to, e, n, "control_to")));
  }
}

void add_writes(OpGraphBuilder& builder, const Columns& columns) {
  const std::size_t n = columns.names.size();
  if (columns.write_op.has_value() != columns.write_variable.has_value())
    throw InputError("write_op and write_variable go together");
  require_size(size_of(columns.write_variable), size_of(columns.write_op), "write_variable");
  for (std::size_t w = 0; w < size_of(columns.write_op); ++w)
    builder.add_write(OpId(index_at(*columns.write_op, w, n, "write_op")),
                      OpId(index_at(*columns.write_variable, w, n, "write_variable")));
}

// `Stored` is what a vector keeps of a T: vector<bool> has no array of bool.
template <class T, class Stored = T>
nb::object numpy_array(std::vector<Stored> values) {
  static_assert(sizeof(T) == sizeof(Stored));
  auto held = std::make_unique<std::vector<Stored>>(std::move(values));
  void* data = held->data();
  const std::size_t size = held->size();
  nb::capsule owner(held.get(),
                    [](void* p) noexcept { delete static_cast<std::vector<Stored>*>(p); });
  held.release();
  return nb::cast(nb::ndarray<nb::numpy, T, nb::ndim<1>>(data, {size}, owner));
}

nb::object int64_array(std::vector<std::int64_t> values) {
  return numpy_array<std::int64_t>(std::move(values));
}

void put_operators(nb::dict& result, const OpGraph& graph) {
  std::vector<std::int64_t> permanent, temporary, forward, groups;
  std::vector<std::uint8_t> backward, per_step, recompute, variable, random;
  std::vector<std::string_view> kinds;
  std::vector<std::optional<std::string_view>> devices;
  for (const OpId id : graph.ops()) {
    const Operator& op = graph[id];
    permanent.push_back(op.variable ? 0 : op.permanent.count());
    temporary.push_back(op.temporary.count());
    forward.push_back(op.forward.has_value() ? std::int64_t{op.forward->value()} : -1);
    // What a written variable holds together is said by `write_op`.
    const bool named = !graph.colocation_names(id).empty();
    groups.push_back(named ? std::int64_t{op.group->value()} : -1);
    backward.push_back(op.backward ? 1 : 0);
    per_step.push_back(op.per_step ? 1 : 0);
    recompute.push_back(op.recompute ? 1 : 0);
    variable.push_back(op.variable ? 1 : 0);
    random.push_back(op.random ? 1 : 0);
    kinds.push_back(op.kind);
    devices.push_back(op.pin);
  }
  nb::dict times;
  for (const KindId kind : graph.kinds()) {
    std::vector<std::int64_t> column;
    for (const auto& time : graph.times(kind))
      column.push_back(time.has_value() ? time->count() : -1);
    times[nb::cast(graph.kind_name(kind))] = int64_array(std::move(column));
  }
  result["times"] = times;
  result["kinds"] = nb::cast(kinds);
  result["permanent"] = int64_array(std::move(permanent));
  result["temporary"] = int64_array(std::move(temporary));
  result["forward"] = int64_array(std::move(forward));
  result["backward"] = numpy_array<bool>(std::move(backward));
  result["per_step"] = numpy_array<bool>(std::move(per_step));
  result["recompute"] = numpy_array<bool>(std::move(recompute));
  result["variable"] = numpy_array<bool>(std::move(variable));
  result["random"] = numpy_array<bool>(std::move(random));
  result["groups"] = int64_array(std::move(groups));
  result["devices"] = nb::cast(devices);
}

void put_edges(nb::dict& result, const OpGraph& graph) {
  std::vector<std::int64_t> producer, bytes, edge_tensor, edge_to, control_from, control_to;
  for (const TensorId tensor : graph.tensors()) {
    producer.push_back(graph.producer(tensor).value());
    bytes.push_back(graph.size(tensor).count());
  }
  for (const OpId op : graph.ops())
    for (const Edge& edge : graph.out_edges(op)) {
      if (edge.tensor.has_value()) {
        edge_tensor.push_back(edge.tensor->value());
        edge_to.push_back(edge.to.value());
      } else {
        control_from.push_back(edge.from.value());
        control_to.push_back(edge.to.value());
      }
    }
  std::vector<std::int64_t> write_op, write_variable;
  for (const auto& [op, variable] : graph.writes()) {
    write_op.push_back(op.value());
    write_variable.push_back(variable.value());
  }
  result["write_op"] = int64_array(std::move(write_op));
  result["write_variable"] = int64_array(std::move(write_variable));
  result["tensor_producer"] = int64_array(std::move(producer));
  result["tensor_bytes"] = int64_array(std::move(bytes));
  result["edge_tensor"] = int64_array(std::move(edge_tensor));
  result["edge_to"] = int64_array(std::move(edge_to));
  result["control_from"] = int64_array(std::move(control_from));
  result["control_to"] = int64_array(std::move(control_to));
}

nb::dict arrays_of(const OpGraph& graph) {
  nb::dict result;
  result["memory_mode"] = memory_mode_name(graph.memory_mode());
  result["batch_size"] = nb::cast(graph.batch_size());
  put_operators(result, graph);
  put_edges(result, graph);
  return result;
}

}  // namespace

void bind_graph_arrays(nb::module_& m) {
  m.def(
      "graph_from_arrays",
      [](const std::vector<std::string>& names,
         const nb::typed<nb::mapping, std::string, Column>& times, const std::string& name,
         std::string_view memory_mode, std::optional<std::int64_t> batch_size,
         std::optional<std::vector<std::string>> kinds, std::optional<Column> permanent,
         std::optional<Column> temporary, std::optional<Column> forward,
         std::optional<Flags> backward, std::optional<Column> groups,
         std::optional<std::vector<std::optional<std::string>>> devices,
         std::optional<Column> tensor_producer, std::optional<Column> tensor_bytes,
         std::optional<Column> edge_tensor, std::optional<Column> edge_to,
         std::optional<Column> control_from, std::optional<Column> control_to,
         std::optional<Flags> per_step, std::optional<Flags> recompute,
         std::optional<Flags> variable, std::optional<Flags> random, std::optional<Column> write_op,
         std::optional<Column> write_variable) {
        const Columns columns{
            .names = names,
            .times = items_of<Column>(times, "times are int64 arrays by device kind"),
            .kinds = std::move(kinds),
            .devices = std::move(devices),
            .backward = std::move(backward),
            .per_step = std::move(per_step),
            .recompute = std::move(recompute),
            .variable = std::move(variable),
            .random = std::move(random),
            .permanent = std::move(permanent),
            .temporary = std::move(temporary),
            .forward = std::move(forward),
            .groups = std::move(groups),
            .tensor_producer = std::move(tensor_producer),
            .tensor_bytes = std::move(tensor_bytes),
            .edge_tensor = std::move(edge_tensor),
            .edge_to = std::move(edge_to),
            .control_from = std::move(control_from),
            .control_to = std::move(control_to),
            .write_op = std::move(write_op),
            .write_variable = std::move(write_variable)};
        nb::gil_scoped_release unlocked;
        OpGraphBuilder builder(name);
        builder.set_memory_mode(memory_mode_of(memory_mode));
        if (batch_size.has_value()) builder.set_batch_size(*batch_size);
        builder.reserve(names.size(), size_of(columns.edge_to) + size_of(columns.control_to));
        check_sizes(columns);
        add_operators(builder, columns);
        add_edges(builder, columns);
        add_writes(builder, columns);
        return GraphHandle{std::make_shared<const OpGraph>(std::move(builder).build())};
      },
      "names"_a, "times"_a, nb::kw_only(), "name"_a = "", "memory_mode"_a = "dataflow",
      "batch_size"_a = nb::none(), "kinds"_a = nb::none(), "permanent"_a.noconvert() = nb::none(),
      "temporary"_a.noconvert() = nb::none(), "forward"_a.noconvert() = nb::none(),
      "backward"_a.noconvert() = nb::none(), "groups"_a.noconvert() = nb::none(),
      "devices"_a = nb::none(), "tensor_producer"_a.noconvert() = nb::none(),
      "tensor_bytes"_a.noconvert() = nb::none(), "edge_tensor"_a.noconvert() = nb::none(),
      "edge_to"_a.noconvert() = nb::none(), "control_from"_a.noconvert() = nb::none(),
      "control_to"_a.noconvert() = nb::none(), "per_step"_a.noconvert() = nb::none(),
      "recompute"_a.noconvert() = nb::none(), "variable"_a.noconvert() = nb::none(),
      "random"_a.noconvert() = nb::none(), "write_op"_a.noconvert() = nb::none(),
      "write_variable"_a.noconvert() = nb::none(),
      "A Graph from int64 arrays; arrays of another type are refused. Per operator: `times` "
      "(nanoseconds by device kind, -1: cannot run there), `kinds` (text), `permanent` and "
      "`temporary` (bytes), `forward` (index of the operator whose backward it is, -1: none), "
      "`backward` (bool; so are all with a forward), `per_step` (bool: runs once per step, not "
      "once per micro-batch), `recompute` (bool: a second run gives the same outputs), `groups` "
      "(number of its colocation group, "
      "-1: none) and `devices` (name of the only device it may run on, or None). Per tensor: "
      "its producer and bytes. Per edge: the tensor and the operator that reads it; per control "
      "edge: the two operators. `variable` (bool: its one output is there for the whole step), "
      "`random` (bool: draws random numbers); per write: the operator, and the variable to which "
      "it "
      "gives a new value in every micro-batch.");
  m.def(
      "graph_to_arrays", [](const GraphHandle& h) { return arrays_of(*h.graph); }, "graph"_a,
      nb::sig("def graph_to_arrays(graph: Graph) -> dict[str, typing.Any]"),
      "What graph_from_arrays takes beside names and name, as NumPy arrays and lists. Colocation "
      "groups are numbers here: their names are not kept, and those that share an operator are "
      "one.");
}

}  // namespace baechi::python
