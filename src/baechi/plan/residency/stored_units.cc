// SPDX-License-Identifier: Apache-2.0
#include "baechi/plan/residency/stored_units.h"

#include <algorithm>
#include <utility>

#include "baechi/graph/residency.h"
#include "baechi/graph/union_find.h"

namespace baechi {

namespace {

void tell_of_updates(const CostModel& costs, const StepGraph& step, DeviceId store,
                     StoredUnit& unit) {
  const OpGraph& graph = costs.graph();
  Bytes reads, room, keeps;
  std::size_t updates = 0;
  for (const OpId op : unit.members) {
    if (!is_update(step, op)) continue;
    ++updates;
    unit.on_host += *costs.compute_time(op, store);
    keeps += graph[op].permanent;
    for (const Edge& edge : graph.in_edges(op))
      if (edge.tensor.has_value()) reads += graph.size(*edge.tensor);
  }
  for (const DeviceId device : costs.cluster().devices())
    if (device != store) room = std::max(room, costs.cluster()[device].capacity);
  unit.may_stream = updates == 1 && unit.on_host > Time(0) && keeps == Bytes(0) && reads <= room;
}

}  // namespace

DeviceId store_of(const Cluster& cluster) {
  for (const DeviceId device : cluster.devices())
    if (cluster[device].kind == kStoreKind) return device;
  return DeviceId(0);
}

std::vector<StoredUnit> units_for_store(const CostModel& costs, const StepGraph& step,
                                        DeviceId store) {
  const OpGraph& graph = costs.graph();
  UnionFind together(graph.num_ops());
  IdVector<OpId, bool> may(graph.num_ops());
  for (const OpId op : graph.ops()) {
    const bool update = is_update(step, op);
    may[op] = costs.may_run(op, store) &&
              (graph[op].variable
                   ? !costs.pin(op).has_value() && !reader_behind_update(step, op).has_value()
                   : update);
    if (!update) continue;
    for (const Edge& edge : graph.in_edges(op))
      if (edge.tensor.has_value() && graph[edge.from].variable)
        together.unite(op.value(), edge.from.value());
  }
  for (const auto& [op, variable] : step.writes()) may[variable] = false;
  IdVector<OpId, bool> refused(graph.num_ops()), has_variable(graph.num_ops());
  IdVector<OpId, StoredUnit> units(graph.num_ops());
  for (const OpId op : graph.ops()) {
    if (!graph[op].variable && !is_update(step, op)) continue;
    const OpId unit(together.find(op.value()));
    refused[unit] = refused[unit] || !may[op];
    has_variable[unit] = has_variable[unit] || graph[op].variable;
    units[unit].members.push_back(op);
    units[unit].bytes += graph[op].permanent;
  }
  std::vector<StoredUnit> result;
  for (const OpId op : graph.ops())
    if (!refused[op] && has_variable[op]) {
      tell_of_updates(costs, step, store, units[op]);
      result.push_back(std::move(units[op]));
    }
  return result;
}

bool may_fit(const CostModel& costs, std::uint32_t micro_batches) {
  const OpGraph& graph = costs.graph();
  if (micro_batches > 1 && !graph.marks_steps()) return true;
  const DeviceId store = store_of(costs.cluster());
  IdVector<OpId, bool> may_leave(graph.num_ops());
  for (const StoredUnit& unit : units_for_store(costs, graph, store))
    for (const OpId op : unit.members) may_leave[op] = true;
  Bytes stays, room;
  for (const OpId op : graph.ops()) {
    const bool runs_there =
        !graph[op].variable && !is_update(graph, op) && costs.may_run(op, store);
    if (!may_leave[op] && !runs_there) stays += graph[op].permanent;
  }
  for (const DeviceId device : costs.cluster().devices())
    if (device != store) room += costs.cluster()[device].capacity;
  return stays <= room;
}

}  // namespace baechi
