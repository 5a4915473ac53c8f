// SPDX-License-Identifier: Apache-2.0
#include "baechi/place/priority.h"

#include <algorithm>
#include <optional>

namespace baechi {
namespace {

IdVector<OpId, Time> static_levels(const CostModel& costs) {
  const OpGraph& graph = costs.graph();
  const std::span<const OpId> order = graph.topological_order();
  IdVector<OpId, Time> level(graph.num_ops());
  for (std::size_t i = order.size(); i-- > 0;) {
    const OpId op = order[i];
    Time after;
    for (const Edge& edge : graph.out_edges(op)) after = std::max(after, level[edge.to]);
    std::optional<Time> fastest;
    for (std::size_t c = 0; c < costs.num_classes(); ++c)
      if (const auto time = costs.class_times(DeviceClassId(c))[op])
        fastest = std::min(fastest.value_or(*time), *time);
    level[op] = after + fastest.value_or(Time(0));
  }
  return level;
}

// Suppliers that an operator which is none waits for.
IdVector<OpId, bool> called_for(const OpGraph& graph, const IdVector<OpId, bool>& suppliers) {
  IdVector<OpId, bool> called(graph.num_ops());
  const std::span<const OpId> order = graph.topological_order();
  for (std::size_t i = order.size(); i-- > 0;) {
    const auto out = graph.out_edges(order[i]);
    called[order[i]] =
        suppliers[order[i]] && std::any_of(out.begin(), out.end(), [&](const Edge& edge) {
          return !suppliers[edge.to] || called[edge.to];
        });
  }
  return called;
}

}  // namespace

Priority longest_way_first(const CostModel& costs, const IdVector<OpId, bool>& suppliers) {
  const IdVector<OpId, Time> level = static_levels(costs);
  const IdVector<OpId, bool> called = called_for(costs.graph(), suppliers);
  Priority priority;
  priority.by_rank.assign(level.keys().begin(), level.keys().end());
  std::sort(priority.by_rank.begin(), priority.by_rank.end(), [&](OpId a, OpId b) {
    if (called[a] != called[b]) return bool(called[a]);
    return level[a] != level[b] ? level[a] > level[b] : a < b;
  });
  priority.rank.resize(level.size());
  for (std::size_t i = 0; i < level.size(); ++i)
    priority.rank[priority.by_rank[i]] = static_cast<std::uint32_t>(i);
  return priority;
}

}  // namespace baechi
