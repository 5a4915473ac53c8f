// SPDX-License-Identifier: Apache-2.0
#include "baechi/place/topological_sequences.h"

#include <cstdint>
#include <functional>
#include <queue>
#include <tuple>
#include <utility>

#include "baechi/graph/topological_order.h"

namespace baechi {
namespace {

IdVector<OpId, std::uint32_t> parent_counts(const OpGraph& graph) {
  IdVector<OpId, std::uint32_t> counts(graph.num_ops());
  for (const OpId op : graph.ops())
    counts[op] = static_cast<std::uint32_t>(graph.in_edges(op).size());
  return counts;
}

Time mean_time(const CostModel& costs, OpId op) {
  Time sum;
  std::int64_t devices = 0;
  for (const DeviceId device : costs.cluster().devices())
    if (const auto time = costs.compute_time(op, device)) sum += *time, ++devices;
  return devices == 0 ? sum : Time(sum.count() / devices);
}

}  // namespace

TopologicalSequence depth_first_sequence(const OpGraph& graph) {
  TopologicalSequence sequence;
  sequence.reserve(graph.num_ops());
  enum class State : std::uint8_t { kNew, kOpen, kDone };
  IdVector<OpId, State> state(graph.num_ops(), State::kNew);
  std::vector<OpId> stack;
  for (const OpId sink : graph.ops()) {
    if (!graph.out_edges(sink).empty()) continue;
    stack.push_back(sink);
    while (!stack.empty()) {
      const OpId op = stack.back();
      if (state[op] == State::kNew) {
        state[op] = State::kOpen;
        for (const Edge& edge : graph.in_edges(op))
          if (state[edge.from] == State::kNew) stack.push_back(edge.from);
      } else {
        stack.pop_back();
        if (std::exchange(state[op], State::kDone) == State::kOpen) sequence.push_back(op);
      }
    }
  }
  return sequence;
}

TopologicalSequence critical_path_first_sequence(const CostModel& costs) {
  const OpGraph& graph = costs.graph();
  IdVector<OpId, Time> ahead(graph.num_ops());
  const auto order = graph.topological_order();
  for (auto op = order.rbegin(); op != order.rend(); ++op) {
    Time longest;
    for (const Edge& edge : graph.out_edges(*op)) longest = std::max(longest, ahead[edge.to]);
    ahead[*op] = longest + mean_time(costs, *op);
  }
  return order_by_key(graph, [&](OpId op) { return -ahead[op].count(); });
}

TopologicalSequence memory_frugal_sequence(const OpGraph& graph) {
  IdVector<TensorId, std::uint32_t> readers_left(graph.num_tensors());
  for (const TensorId tensor : graph.tensors())
    readers_left[tensor] = static_cast<std::uint32_t>(graph.consumers(tensor).size());
  const auto growth = [&](OpId op) {
    Bytes bytes = graph[op].temporary + graph.output_bytes(op);
    for (const Edge& edge : graph.in_edges(op))
      if (edge.tensor.has_value() && readers_left[*edge.tensor] == 1)
        bytes -= graph.home_size(*edge.tensor);
    return bytes.count();
  };
  // Growth only falls while an operator waits, so an entry is an upper bound: it is checked again
  // when a tensor is down to its last reader, which then gets a fresh entry.
  using Free = std::tuple<std::int64_t, std::uint32_t>;  // growth, op
  std::priority_queue<Free, std::vector<Free>, std::greater<>> free;
  IdVector<OpId, std::uint32_t> parents_left = parent_counts(graph);
  IdVector<OpId, char> taken(graph.num_ops());
  for (const OpId op : graph.ops())
    if (parents_left[op] == 0) free.emplace(growth(op), op.value());
  TopologicalSequence sequence;
  sequence.reserve(graph.num_ops());
  while (!free.empty()) {
    const OpId op(std::get<1>(free.top()));
    free.pop();
    if (std::exchange(taken[op], char{1}) != 0) continue;
    sequence.push_back(op);
    for (const Edge& edge : graph.in_edges(op)) {
      if (!edge.tensor.has_value() || --readers_left[*edge.tensor] != 1) continue;
      for (const Edge& reader : graph.consumers(*edge.tensor))
        if (taken[reader.to] == 0 && parents_left[reader.to] == 0)
          free.emplace(growth(reader.to), reader.to.value());
    }
    for (const Edge& edge : graph.out_edges(op))
      if (--parents_left[edge.to] == 0) free.emplace(growth(edge.to), edge.to.value());
  }
  return sequence;
}

}  // namespace baechi
