// SPDX-License-Identifier: Apache-2.0
#include "unit/graph_sketch.h"

#include <utility>

#include "unit/graphs.h"

namespace baechi::testing {

GraphSketch& GraphSketch::op(std::string_view name, std::int64_t time, std::int64_t temporary,
                             std::int64_t permanent) {
  timed(builder_, {.name = name, .permanent = Bytes(permanent), .temporary = Bytes(temporary)},
        Time(time));
  return *this;
}

GraphSketch& GraphSketch::tensor(std::string_view producer, std::int64_t bytes, Names consumers) {
  const TensorId tensor = builder_.add_output(at(producer), Bytes(bytes));
  for (const char* consumer : consumers) builder_.connect(tensor, at(consumer));
  return *this;
}

GraphSketch& GraphSketch::control(std::string_view from, std::string_view to) {
  builder_.add_control_edge(at(from), at(to));
  return *this;
}

GraphSketch& GraphSketch::backward(std::string_view op) {
  builder_.set_backward(at(op));
  return *this;
}

GraphSketch& GraphSketch::ops(std::initializer_list<Op> all) {
  for (const Op& o : all) op(o.name, o.time, o.temporary, o.permanent);
  return *this;
}

GraphSketch& GraphSketch::tensors(std::initializer_list<Tensor> all) {
  for (const Tensor& t : all) tensor(t.producer, t.bytes, t.consumers);
  return *this;
}

GraphSketch& GraphSketch::controls(std::initializer_list<Control> all) {
  for (const Control& edge : all) control(edge.from, edge.to);
  return *this;
}

GraphSketch& GraphSketch::backwards(Names all) {
  for (const char* name : all) backward(name);
  return *this;
}

GraphSketch& GraphSketch::memory_mode(MemoryMode mode) {
  builder_.set_memory_mode(mode);
  return *this;
}

OpGraph GraphSketch::build() { return std::move(builder_).build(); }

OpId GraphSketch::at(std::string_view name) const { return builder_.find(name).value(); }

OpId op_named(const OpGraph& graph, std::string_view name) { return graph.find(name).value(); }

PlacedGraph in_order(const OpGraph& graph, const DeviceLists& lists) {
  PlacedGraph placed = in_any_order(graph, lists);
  placed.order.emplace();
  for (const std::vector<std::string_view>& list : lists) {
    std::vector<OpId> ops;
    for (const std::string_view name : list) ops.push_back(op_named(graph, name));
    placed.order->push_back(std::move(ops));
  }
  return placed;
}

PlacedGraph in_any_order(const OpGraph& graph, const DeviceLists& lists) {
  PlacedGraph placed;
  placed.device.assign(graph.num_ops(), DeviceId(0));
  for (std::size_t device = 0; device < lists.size(); ++device)
    for (const std::string_view name : lists[device])
      placed.device[op_named(graph, name)] = DeviceId(device);
  return placed;
}

}  // namespace baechi::testing
