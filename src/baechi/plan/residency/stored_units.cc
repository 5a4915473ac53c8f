// SPDX-License-Identifier: Apache-2.0
#include "baechi/plan/residency/stored_units.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

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

std::vector<OpId> first_senders(const StepGraph& step, const OpGraph& graph,
                                const std::vector<StoredUnit>& units, const Unrolled* apart) {
  std::vector<OpId> found;
  for (const StoredUnit& unit : units)
    for (const OpId op : unit.members) {
      if (graph[op].variable) continue;
      if (unit.may_stream) found.push_back(op);
      for (const Edge& edge : graph.in_edges(op))
        if (edge.tensor.has_value() && !graph[edge.from].variable && !is_update(step, edge.from))
          found.push_back(apart != nullptr && apart->is_sum(edge.from) ? apart->original[edge.from]
                                                                       : edge.from);
    }
  return found;
}

Time least_work(const CostModel& costs, const StepGraph& step, DeviceId device,
                const std::vector<OpId>& ends) {
  const OpGraph& graph = costs.graph();
  const auto takes = [&](OpId op) {
    if (graph[op].variable || is_update(step, op)) return Time(0);
    return costs.compute_time(op, device).value_or(Time(0));
  };
  std::optional<Time> least;
  for (const OpId end : ends) {
    IdVector<OpId, bool> seen(graph.num_ops());
    std::vector<OpId> left{end};
    Time work = takes(end);
    while (!left.empty() && (!least.has_value() || work < *least)) {
      const OpId op = left.back();
      left.pop_back();
      for (const Edge& edge : graph.in_edges(op)) {
        if (seen[edge.from]) continue;
        seen[edge.from] = true;
        left.push_back(edge.from);
        work += takes(edge.from);
      }
    }
    if (!least.has_value() || work < *least) least = work;
  }
  return least.value_or(Time(0));
}

Time shortest_path(const CostModel& costs, const StepGraph& step, DeviceId store,
                   const std::vector<OpId>& ends) {
  const OpGraph& graph = costs.graph();
  IdVector<OpId, Time> end(graph.num_ops());
  for (const OpId op : graph.topological_order()) {
    std::optional<Time> runs;
    for (const DeviceId device : costs.cluster().devices())
      if (const auto time = costs.compute_time(op, device); device != store && time.has_value())
        runs = std::min(runs.value_or(*time), *time);
    if (!is_update(step, op)) end[op] += runs.value_or(Time(0));
    for (const Edge& edge : graph.out_edges(op)) end[edge.to] = std::max(end[edge.to], end[op]);
  }
  std::optional<Time> least;
  for (const OpId op : ends) least = std::min(least.value_or(end[op]), end[op]);
  return least.value_or(Time(0));
}

IdVector<OpId, bool> before_all_of(const StepGraph& step, const OpGraph& graph,
                                   const std::vector<OpId>& ends) {
  constexpr std::size_t kAtOnce = 64;
  IdVector<OpId, bool> found(graph.num_ops(), !ends.empty());
  for (std::size_t begin = 0; begin < ends.size(); begin += kAtOnce) {
    const std::size_t count = std::min(kAtOnce, ends.size() - begin);
    IdVector<OpId, std::uint64_t> before(graph.num_ops());  // a bit for each end that waits for it
    std::uint64_t all = 0;
    for (std::size_t i = 0; i < count; ++i) {
      before[ends[begin + i]] |= std::uint64_t{1} << i;
      all |= std::uint64_t{1} << i;
    }
    const std::span<const OpId> order = graph.topological_order();
    for (std::size_t at = order.size(); at-- > 0;) {
      const OpId op = order[at];
      for (const Edge& edge : graph.out_edges(op)) before[op] |= before[edge.to];
      if (before[op] != all || is_update(step, op)) found[op] = false;
    }
  }
  return found;
}

}  // namespace baechi
