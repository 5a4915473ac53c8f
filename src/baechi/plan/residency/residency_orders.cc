// SPDX-License-Identifier: Apache-2.0
#include "baechi/plan/residency/residency_orders.h"

#include <algorithm>
#include <functional>
#include <utility>
#include <vector>

#include "baechi/graph/topological_order.h"
#include "baechi/simulate/simulator.h"

namespace baechi {

ResidencyStart start_of(const CostModel& costs, Placement device, DeviceOrder order) {
  Simulator simulator(costs);
  simulator.makespan({device, order});
  return {store_of(costs.cluster()), std::move(device), std::move(order), simulator.slots()};
}

Time end_of(const ResidencyStart& start) {
  Time end;
  for (const OpSlot& slot : start.slots) end = std::max(end, slot.end);
  return end;
}

std::optional<ResidencyStart> with_updates_last(const ResidencyProblem& problem,
                                                const ResidencyStart& start) {
  const OpGraph& graph = problem.costs.graph();
  const auto update = [&](OpId op) { return is_update(problem.step, op); };
  for (const OpId op : graph.ops())
    for (const Edge& edge : graph.out_edges(op))
      if (update(op) && !update(edge.to)) return std::nullopt;
  DeviceOrder last = start.order;
  for (std::vector<OpId>& order : last)
    std::stable_partition(order.begin(), order.end(), std::not_fn(update));
  return start_of(problem.costs, start.device, std::move(last));
}

ResidencyStart with_last_gradients_first(const ResidencyProblem& problem,
                                         const ResidencyStart& start) {
  const OpGraph& graph = problem.costs.graph();
  const auto key_of = [&](OpId op) {
    const bool update = is_update(problem.step, op), later = graph[op].backward && !update;
    const Time at = start.slots[op].start;
    return std::pair(later, update ? Time(0) : later ? Time(0) - at : at);
  };
  DeviceOrder other(start.order.size());
  for (const OpId op : order_by_key(graph, key_of)) other[start.device[op]].push_back(op);
  return start_of(problem.costs, start.device, std::move(other));
}

}  // namespace baechi
