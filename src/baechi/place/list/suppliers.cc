// SPDX-License-Identifier: Apache-2.0
#include "baechi/place/list/suppliers.h"

#include <algorithm>
#include <optional>
#include <span>

namespace baechi {
namespace {

constexpr std::int64_t kWorthWaiting = 4;  // a transfer must take so many times the work it saves

Time least_time(const CostModel& costs, OpId op) {
  std::optional<Time> least;
  for (std::size_t c = 0; c < costs.num_classes(); ++c)
    if (const auto time = costs.class_times(DeviceClassId(c))[op])
      least = std::min(least.value_or(*time), *time);
  return least.value_or(Time(0));
}

}  // namespace

IdVector<OpId, bool> find_suppliers(const CostModel& costs) {
  const OpGraph& graph = costs.graph();
  IdVector<OpId, bool> supplier(graph.num_ops());
  const std::span<const Link> links = costs.cluster().links();
  if (links.empty()) return supplier;

  IdVector<OpId, Time> work(graph.num_ops());  // with all suppliers before it, some counted twice
  for (const OpId op : graph.topological_order()) {
    const auto in = graph.in_edges(op);
    if (!std::all_of(in.begin(), in.end(),
                     [&](const Edge& edge) { return bool(supplier[edge.from]); }))
      continue;
    work[op] = least_time(costs, op);
    for (const Edge& edge : in)
      if (edge.tensor.has_value()) work[op] += work[edge.from];

    Bytes largest;
    for (const TensorId tensor : graph.outputs(op)) largest = std::max(largest, graph.size(tensor));
    Time sending = links.front().transfer_time(largest);
    for (const Link& link : links) sending = std::min(sending, link.transfer_time(largest));
    supplier[op] = work[op] * kWorthWaiting <= sending;
  }
  return supplier;
}

}  // namespace baechi
