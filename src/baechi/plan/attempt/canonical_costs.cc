// SPDX-License-Identifier: Apache-2.0
#include "baechi/plan/attempt/canonical_costs.h"

#include <algorithm>

#include "baechi/graph/canonical_order.h"
#include "baechi/graph/recosted.h"

namespace baechi {
namespace {

// A device on which the operator takes nothing at all, if nothing depends on where it is or when.
std::optional<DeviceId> idles_on(const CostModel& costs, OpId op) {
  const OpGraph& graph = costs.graph();
  const Operator& self = graph[op];
  const auto in = graph.in_edges(op);
  if (self.permanent > Bytes(0) || self.temporary > Bytes(0) || self.group.has_value() ||
      self.forward.has_value() || graph.outputs(op).begin() != graph.outputs(op).end() ||
      !graph.out_edges(op).empty() ||
      std::any_of(in.begin(), in.end(), [](const Edge& edge) { return edge.tensor.has_value(); }))
    return std::nullopt;
  for (const DeviceId device : costs.cluster().devices())
    if (costs.may_run(op, device) && costs.compute_time(op, device) == Time(0)) return device;
  return std::nullopt;
}

}  // namespace

CanonicalCosts::CanonicalCosts(const CostModel& given, Numbering numbering)
    : order_([&] {
        const OpGraph& graph = given.graph();
        IdVector<OpId, char> needed(graph.num_ops());
        for (const OpId op : graph.ops())
          if (graph[op].forward.has_value()) needed[*graph[op].forward] = 1;
        std::vector<OpId> kept;
        for (const OpId op : graph.ops()) {
          const std::optional<DeviceId> device = idles_on(given, op);
          if (device.has_value() && needed[op] == 0 && idle_.size() + 1 < graph.num_ops())
            idle_.emplace_back(op, *device);
          else
            kept.push_back(op);
        }
        if (numbering == Numbering::kGiven) return kept;
        // Idle ones are no surroundings of others: with and without them the order is the same.
        std::vector<OpId> order;
        for (const OpId op : canonical_order(reordered(graph, kept)))
          order.push_back(kept[op.index()]);
        return order;
      }()),
      canonical_(given.graph().num_ops()),
      graph_(reordered(given.graph(), order_)),
      costs_(graph_, given.cluster()) {
  for (const OpId op : graph_.ops()) canonical_[order_[op.index()]] = op;
}

// The idle ones end the step where they are.
PlacedGraph CanonicalCosts::to_given(const PlacedGraph& placed) const {
  PlacedGraph result{Placement(canonical_.size(), DeviceId(0)), std::nullopt};
  for (const OpId op : graph_.ops()) result.device[to_given(op)] = placed.device[op];
  for (const auto& [op, device] : idle_) result.device[op] = device;
  if (!placed.order.has_value()) return result;
  result.order = placed.order;
  for (std::vector<OpId>& row : *result.order)
    for (OpId& op : row) op = to_given(op);
  for (const auto& [op, device] : idle_) (*result.order)[device].push_back(op);
  return result;
}

PlacedGraph CanonicalCosts::from_given(const PlacedGraph& placed) const {
  PlacedGraph result{from_given(placed.device), std::nullopt};
  if (!placed.order.has_value()) return result;
  result.order.emplace(placed.order->size());
  for (const DeviceId device : placed.order->keys())
    for (const OpId op : (*placed.order)[device])
      if (canonical_[op].has_value()) (*result.order)[device].push_back(*canonical_[op]);
  return result;
}

Placement CanonicalCosts::from_given(const Placement& placement) const {
  Placement result;
  for (const OpId op : order_) result.push_back(placement[op]);
  return result;
}

}  // namespace baechi
