// SPDX-License-Identifier: Apache-2.0
#include "baechi/optimize/plan_order.h"

#include <cstdint>
#include <functional>
#include <optional>
#include <queue>
#include <span>

#include "baechi/base/error.h"

namespace baechi {

std::vector<OpId> plan_order(const OpGraph& graph, const DeviceOrder& order) {
  IdVector<OpId, std::uint32_t> rank(graph.num_ops()), waits_for(graph.num_ops());
  IdVector<OpId, std::optional<OpId>> next_on_device(graph.num_ops());
  std::uint32_t next_rank = 0;
  for (const OpId op : graph.topological_order()) {
    rank[op] = next_rank++;
    waits_for[op] = static_cast<std::uint32_t>(graph.in_edges(op).size());
  }
  for (const std::vector<OpId>& ops : order)
    for (std::size_t i = 1; i < ops.size(); ++i) {
      next_on_device[ops[i - 1]] = ops[i];
      ++waits_for[ops[i]];
    }

  std::priority_queue<std::uint32_t, std::vector<std::uint32_t>, std::greater<>> free;
  for (const OpId op : graph.ops())
    if (waits_for[op] == 0) free.push(rank[op]);
  std::vector<OpId> sequence;
  sequence.reserve(graph.num_ops());
  const auto done_before = [&](OpId op) {
    if (--waits_for[op] == 0) free.push(rank[op]);
  };
  while (!free.empty()) {
    const OpId op = graph.topological_order()[free.top()];
    free.pop();
    sequence.push_back(op);
    for (const Edge& edge : graph.out_edges(op)) done_before(edge.to);
    if (next_on_device[op].has_value()) done_before(*next_on_device[op]);
  }
  if (sequence.size() != graph.num_ops())
    throw InputError("the devices' orders wait for each other: " +
                     std::to_string(graph.num_ops() - sequence.size()) + " operators never start");
  return sequence;
}

DeviceOrder device_order(const std::vector<OpId>& sequence, const Placement& placement,
                         std::size_t num_devices) {
  DeviceOrder order(num_devices);
  for (const OpId op : sequence) order[placement[op]].push_back(op);
  return order;
}

}  // namespace baechi
