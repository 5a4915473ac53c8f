// SPDX-License-Identifier: Apache-2.0
#include "baechi/schedule/schedule.h"

#include <algorithm>
#include <tuple>

namespace baechi {

Placement placement_of(const Schedule& schedule) {
  Placement placement;
  placement.reserve(schedule.slots.size());
  for (const OpSlot& slot : schedule.slots) placement.push_back(slot.device);
  return placement;
}

std::vector<OpId> sequence_of(const Schedule& schedule, const OpGraph& graph) {
  IdVector<OpId, std::size_t> rank(graph.num_ops());
  for (std::size_t i = 0; i < graph.num_ops(); ++i) rank[graph.topological_order()[i]] = i;
  std::vector<OpId> sequence(graph.ops().begin(), graph.ops().end());
  std::sort(sequence.begin(), sequence.end(), [&](OpId a, OpId b) {
    const OpSlot &x = schedule.slots[a], &y = schedule.slots[b];
    return std::tie(x.start, x.end, rank[a]) < std::tie(y.start, y.end, rank[b]);
  });
  return sequence;
}

DeviceOrder order_of(const Schedule& schedule, const OpGraph& graph, std::size_t num_devices) {
  DeviceOrder order(num_devices);
  for (const OpId op : sequence_of(schedule, graph)) order[schedule.slots[op].device].push_back(op);
  return order;
}

}  // namespace baechi
