// SPDX-License-Identifier: Apache-2.0
#include "baechi/plan/residency/residency_start.h"

#include <algorithm>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "baechi/plan/planner.h"
#include "baechi/simulate/simulator.h"

namespace baechi {
namespace {

// Without the store, and with room for everything.
Cluster without_store(const CostModel& costs, DeviceId store) {
  ClusterSpec spec = costs.cluster().spec();
  spec.devices.erase(spec.devices.begin() + static_cast<std::ptrdiff_t>(store.index()));
  const Device& host = costs.cluster()[store];
  std::erase_if(spec.links, [&](const LinkRule& rule) {
    const std::string& gone = rule.scope == LinkScope::kPair ? host.name : host.kind;
    return (rule.scope == LinkScope::kPair || rule.scope == LinkScope::kKinds) &&
           (rule.from == gone || rule.to == gone);
  });
  Bytes room(1);
  for (const OpId op : costs.graph().ops())
    room += costs.graph()[op].permanent + costs.graph()[op].temporary +
            costs.graph().output_bytes(op) * static_cast<std::int64_t>(spec.devices.size() + 1);
  for (Device& device : spec.devices) device.capacity = std::max(device.capacity, room);
  return Cluster(std::move(spec));
}

}  // namespace

std::optional<ResidencyStart> residency_start(const CostModel& costs, const PlanRequest& asked) {
  const OpGraph& graph = costs.graph();
  DeviceId store(0);
  for (const DeviceId device : costs.cluster().devices())
    if (costs.cluster()[device].kind == kStoreKind) store = device;
  const Cluster cluster = without_store(costs, store);
  const CostModel ample(graph, cluster);
  PlacedGraph placed;
  if (cluster.num_devices() == 1) {
    for (const OpId op : graph.ops())
      if (!ample.may_run(op, DeviceId(0))) return std::nullopt;
    placed.device.assign(graph.num_ops(), DeviceId(0));
    placed.order = DeviceOrder(1);
    const auto order = graph.topological_order();
    (*placed.order)[DeviceId(0)].assign(order.begin(), order.end());
  } else {
    PlanRequest request = asked;
    request.bounds = false;
    PlanResult result = make_plan(ample, request);
    const Plan* plan = std::get_if<Plan>(&result);
    if (plan == nullptr) return std::nullopt;
    placed = {placement_of(plan->schedule), order_of(plan->schedule, graph, cluster.num_devices())};
  }
  Simulator simulator(ample);
  simulator.makespan(placed);
  ResidencyStart start{store, {}, DeviceOrder(costs.cluster().num_devices()), simulator.slots()};
  const auto moved = [&](DeviceId device) {
    return device < store ? device : DeviceId(device.index() + 1);
  };
  start.device.assign(graph.num_ops(), DeviceId(0));
  for (const OpId op : graph.ops()) start.device[op] = moved(placed.device[op]);
  for (const DeviceId device : cluster.devices())
    start.order[moved(device)] = (*placed.order)[device];
  return start;
}

}  // namespace baechi
