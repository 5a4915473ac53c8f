// SPDX-License-Identifier: Apache-2.0
#include "unit/simulate/random_placement.h"

#include <cstddef>
#include <vector>

namespace baechi::testing {
namespace {

std::optional<DeviceId> random_device(const CostModel& costs, OpId op, Random& random) {
  const std::optional<GroupId> group = costs.graph()[op].group;
  std::vector<DeviceId> allowed;
  for (const DeviceId device : costs.cluster().devices())
    if (group ? costs.group_may_run(*group, device) : costs.may_run(op, device))
      allowed.push_back(device);
  if (allowed.empty()) return std::nullopt;
  return allowed[random.below(allowed.size())];
}

}  // namespace

RandomDag varied_limits(Random& random) {
  RandomDag limits;
  limits.max_ops = random.chance(0.1) ? 30 : 12;
  limits.edge_chance = 0.05 + 0.5 * random.unit();
  limits.control_chance = random.chance(0.5) ? 0.3 : 0.0;
  limits.backward_chance = random.chance(0.5) ? 0.4 : 0.0;
  limits.second_output_chance = random.unit();
  limits.group_chance = random.chance(0.3) ? 0.3 : 0.0;
  limits.pin_chance = random.chance(0.2) ? 0.1 : 0.0;
  limits.cpu_chance = 0.9;
  limits.max_time = random.chance(0.4) ? 1 : 20;
  limits.memory_mode = random.chance(0.4) ? MemoryMode::kRetain : MemoryMode::kDataflow;
  if (random.chance(0.3)) limits.variable_chance = 0.4;
  return limits;
}

Cluster varied_cluster(std::uint64_t seed, Random& random) {
  ClusterSpec spec = random_cluster(seed, Bytes(60)).spec();
  for (LinkRule& rule : spec.links) {
    if (random.chance(0.3)) rule.latency = Time(0);
    if (random.chance(0.2)) rule.bandwidth.reset();
    if (random.chance(0.3)) rule.channels.push_back("to {to_host}");
  }
  return Cluster(spec);
}

std::optional<Placement> random_placement(const CostModel& costs, Random& random) {
  const OpGraph& graph = costs.graph();
  Placement placement(graph.num_ops(), DeviceId(0));
  for (const OpId op : graph.ops()) {
    const std::optional<GroupId> group = graph[op].group;
    if (group && graph.members(*group).front() != op) {
      placement[op] = placement[graph.members(*group).front()];
      continue;
    }
    const std::optional<DeviceId> device = random_device(costs, op, random);
    if (!device.has_value()) return std::nullopt;
    placement[op] = *device;
  }
  return placement;
}

DeviceOrder random_order(const CostModel& costs, const Placement& placement, Random& random) {
  const OpGraph& graph = costs.graph();
  DeviceOrder order(costs.cluster().num_devices());
  IdVector<OpId, std::size_t> waits_for(graph.num_ops());
  std::vector<OpId> free;
  for (const OpId op : graph.ops())
    if ((waits_for[op] = graph.in_edges(op).size()) == 0) free.push_back(op);
  while (!free.empty()) {
    const std::size_t pick = random.below(free.size());
    const OpId op = free[pick];
    free.erase(free.begin() + static_cast<std::ptrdiff_t>(pick));
    order[placement[op]].push_back(op);
    for (const Edge& edge : graph.out_edges(op))
      if (--waits_for[edge.to] == 0) free.push_back(edge.to);
  }
  return order;
}

}  // namespace baechi::testing
