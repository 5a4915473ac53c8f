// SPDX-License-Identifier: Apache-2.0
// m-TOPO, the load-balanced baseline: fill devices one by one in topological order (Paper 2.2).
//
//   Cap = sum_i(d_i) / n + max_i(d_i)
//
// where d_i is what operator i needs (permanent + temporary + outputs), and a colocation group
// counts as one operator: its first member in topological order decides for all. With this cap the
// n-th device never overruns it: each of the n - 1 devices before it closed above sum / n.
// Devices of unequal capacity: sum / n becomes the device's share of the total capacity, which is
// the same thing when they are equal.
#include <algorithm>
#include <optional>
#include <vector>

#include "baechi/place/fill/fill.h"
#include "baechi/place/placer.h"

namespace baechi {
namespace {

Bytes largest_need(const OpGraph& graph, const IdVector<OpId, Bytes>& need) {
  Bytes largest;
  IdVector<GroupId, Bytes> group_need(graph.num_groups());
  for (const OpId op : graph.ops()) {
    if (const auto group = graph[op].group) group_need[*group] += need[op];
    largest = std::max(largest, need[op]);
  }
  for (const Bytes bytes : group_need) largest = std::max(largest, bytes);
  return largest;
}

}  // namespace

PlaceResult place_m_topo(const CostModel& costs, const PlaceOptions& options) {
  const Cluster& cluster = costs.cluster();
  FillPlan plan{operator_needs(costs.graph()), {}};
  Bytes total, total_capacity;
  for (const Bytes need : plan.need) total += need;
  for (const DeviceId device : cluster.devices()) total_capacity += cluster[device].capacity;

  const Bytes largest = largest_need(costs.graph(), plan.need);
  for (const DeviceId device : cluster.devices())
    plan.cap.push_back(largest + Bytes(scale_up(total.count(), cluster[device].capacity.count(),
                                                total_capacity.count(), "memory")));
  return fill_devices(costs, plan, options);
}

}  // namespace baechi
