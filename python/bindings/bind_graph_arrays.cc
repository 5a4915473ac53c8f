// SPDX-License-Identifier: Apache-2.0
// Graphs from and to NumPy arrays, without a Python loop per operator.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/vector.h>

#include <string>
#include <utility>
#include <vector>

#include "baechi/base/error.h"
#include "baechi/graph/op_graph_builder.h"
#include "bindings.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace baechi::python {
namespace {

using Column = nb::ndarray<const std::int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

void require_size(const Column& column, std::size_t size, const char* name) {
  if (column.shape(0) != size)
    throw InputError(std::string(name) + " has " + std::to_string(column.shape(0)) +
                     " entries, expected " + std::to_string(size));
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
  const std::map<std::string, Column>& times;
  std::optional<Column> permanent, temporary, tensor_producer, tensor_bytes, edge_tensor, edge_to,
      control_from, control_to, forward;
};

OpGraph build(const std::string& name, const Columns& columns) {
  const std::size_t n = columns.names.size();
  if (columns.permanent.has_value()) require_size(*columns.permanent, n, "permanent");
  if (columns.temporary.has_value()) require_size(*columns.temporary, n, "temporary");
  if (columns.forward.has_value()) require_size(*columns.forward, n, "forward");
  for (const auto& [kind, time] : columns.times) require_size(time, n, ("times of " + kind).c_str());
  const auto size_of = [](const std::optional<Column>& column) {
    return column.has_value() ? column->shape(0) : 0;
  };

  OpGraphBuilder builder(name);
  builder.reserve(n, size_of(columns.edge_to) + size_of(columns.control_to));
  for (std::size_t i = 0; i < n; ++i)
    builder.add_operator(
        {.name = columns.names[i],
         .permanent = Bytes(columns.permanent.has_value() ? (*columns.permanent)(i) : 0),
         .temporary = Bytes(columns.temporary.has_value() ? (*columns.temporary)(i) : 0)});
  for (const auto& [kind, times] : columns.times)
    for (std::size_t i = 0; i < n; ++i)
      if (times(i) != -1) builder.set_time(OpId(i), kind, Time(times(i)));
  if (columns.forward.has_value())
    for (std::size_t i = 0; i < n; ++i)
      if ((*columns.forward)(i) != -1)
        builder.set_forward(OpId(i), OpId(index_at(*columns.forward, i, n, "forward")));

  const std::size_t tensors = size_of(columns.tensor_producer);
  std::vector<TensorId> tensor;
  if (tensors > 0 || columns.tensor_bytes.has_value()) {
    if (!columns.tensor_bytes.has_value()) throw InputError("tensor_bytes is missing");
    require_size(*columns.tensor_bytes, tensors, "tensor_bytes");
  }
  for (std::size_t t = 0; t < tensors; ++t)
    tensor.push_back(
        builder.add_output(OpId(index_at(*columns.tensor_producer, t, n, "tensor_producer")),
                           Bytes((*columns.tensor_bytes)(t))));
  if (columns.edge_to.has_value() != columns.edge_tensor.has_value())
    throw InputError("edge_tensor and edge_to go together");
  if (columns.edge_to.has_value()) {
    require_size(*columns.edge_tensor, columns.edge_to->shape(0), "edge_tensor");
    for (std::size_t e = 0; e < columns.edge_to->shape(0); ++e)
      builder.connect(tensor[index_at(*columns.edge_tensor, e, tensors, "edge_tensor")],
                      OpId(index_at(*columns.edge_to, e, n, "edge_to")));
  }
  if (columns.control_from.has_value() != columns.control_to.has_value())
    throw InputError("control_from and control_to go together");
  if (columns.control_to.has_value()) {
    require_size(*columns.control_from, columns.control_to->shape(0), "control_from");
    for (std::size_t e = 0; e < columns.control_to->shape(0); ++e)
      builder.add_control_edge(OpId(index_at(*columns.control_from, e, n, "control_from")),
                               OpId(index_at(*columns.control_to, e, n, "control_to")));
  }
  return std::move(builder).build();
}

nb::object numpy_array(std::vector<std::int64_t> values) {
  auto* held = new std::vector<std::int64_t>(std::move(values));
  nb::capsule owner(held, [](void* p) noexcept { delete static_cast<std::vector<std::int64_t>*>(p); });
  return nb::cast(nb::ndarray<nb::numpy, std::int64_t, nb::ndim<1>>(held->data(), {held->size()}, owner));
}

nb::dict arrays_of(const OpGraph& graph) {
  std::vector<std::int64_t> permanent, temporary, forward, producer, bytes, edge_tensor, edge_to,
      control_from, control_to;
  for (const OpId op : graph.ops()) {
    permanent.push_back(graph[op].permanent.count());
    temporary.push_back(graph[op].temporary.count());
    forward.push_back(graph[op].forward.has_value() ? std::int64_t{graph[op].forward->value()} : -1);
    for (const Edge& edge : graph.out_edges(op)) {
      if (edge.tensor.has_value()) {
        edge_tensor.push_back(edge.tensor->value());
        edge_to.push_back(edge.to.value());
      } else {
        control_from.push_back(edge.from.value());
        control_to.push_back(edge.to.value());
      }
    }
  }
  for (const TensorId tensor : graph.tensors()) {
    producer.push_back(graph.producer(tensor).value());
    bytes.push_back(graph.size(tensor).count());
  }
  nb::dict times;
  for (const KindId kind : graph.kinds()) {
    std::vector<std::int64_t> column;
    for (const auto& time : graph.times(kind)) column.push_back(time.has_value() ? time->count() : -1);
    times[nb::cast(graph.kind_name(kind))] = numpy_array(std::move(column));
  }
  nb::dict result;
  result["times"] = times;
  result["permanent"] = numpy_array(std::move(permanent));
  result["temporary"] = numpy_array(std::move(temporary));
  result["forward"] = numpy_array(std::move(forward));
  result["tensor_producer"] = numpy_array(std::move(producer));
  result["tensor_bytes"] = numpy_array(std::move(bytes));
  result["edge_tensor"] = numpy_array(std::move(edge_tensor));
  result["edge_to"] = numpy_array(std::move(edge_to));
  result["control_from"] = numpy_array(std::move(control_from));
  result["control_to"] = numpy_array(std::move(control_to));
  return result;
}

}  // namespace

void bind_graph_arrays(nb::module_& m) {
  m.def("graph_from_arrays",
        [](const std::vector<std::string>& names, const std::map<std::string, Column>& times,
           const std::string& name, std::optional<Column> permanent,
           std::optional<Column> temporary, std::optional<Column> forward,
           std::optional<Column> tensor_producer, std::optional<Column> tensor_bytes,
           std::optional<Column> edge_tensor, std::optional<Column> edge_to,
           std::optional<Column> control_from, std::optional<Column> control_to) {
          nb::gil_scoped_release unlocked;
          return GraphHandle{std::make_shared<const OpGraph>(
              build(name, {names, times, permanent, temporary, tensor_producer, tensor_bytes,
                           edge_tensor, edge_to, control_from, control_to, forward}))};
        },
        "names"_a, "times"_a, nb::kw_only(), "name"_a = "", "permanent"_a = nb::none(),
        "temporary"_a = nb::none(), "forward"_a = nb::none(), "tensor_producer"_a = nb::none(),
        "tensor_bytes"_a = nb::none(), "edge_tensor"_a = nb::none(), "edge_to"_a = nb::none(),
        "control_from"_a = nb::none(), "control_to"_a = nb::none(),
        "A Graph from int64 arrays. Per operator: `times` (nanoseconds by device kind, -1: cannot "
        "run there), `permanent` and `temporary` (bytes), `forward` (index of the operator whose "
        "backward it is, -1: none). Per tensor: its producer and bytes. Per edge: the tensor and "
        "the operator that reads it; per control edge: the two operators.");
  m.def("graph_to_arrays", [](const GraphHandle& h) { return arrays_of(*h.graph); }, "graph"_a,
        nb::sig("def graph_to_arrays(graph: Graph) -> dict[str, typing.Any]"),
        "The int64 arrays that graph_from_arrays takes, as NumPy arrays.");
}

}  // namespace baechi::python
