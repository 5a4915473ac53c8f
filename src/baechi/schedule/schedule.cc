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

DeviceOrder order_of(const Schedule& schedule, const OpGraph& graph, std::size_t num_devices) {
  IdVector<OpId, std::size_t> rank(graph.num_ops());
  for (std::size_t i = 0; i < graph.num_ops(); ++i) rank[graph.topological_order()[i]] = i;
  DeviceOrder order(num_devices);
  for (const OpId op : schedule.slots.keys()) order[schedule.slots[op].device].push_back(op);
  for (std::vector<OpId>& ops : order)
    std::sort(ops.begin(), ops.end(), [&](OpId a, OpId b) {
      const OpSlot &x = schedule.slots[a], &y = schedule.slots[b];
      return std::tie(x.start, x.end, rank[a]) < std::tie(y.start, y.end, rank[b]);
    });
  return order;
}

}  // namespace baechi
