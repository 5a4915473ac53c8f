// SPDX-License-Identifier: Apache-2.0
#include "baechi/place/fill/fill.h"

#include <algorithm>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "baechi/place/allowed_devices.h"

namespace baechi {
namespace {

class Filler {
 public:
  Filler(const CostModel& costs, const FillPlan& plan)
      : costs_(costs),
        graph_(costs.graph()),
        plan_(plan),
        allowed_(costs),
        device_(graph_.num_ops()),
        fill_(costs.cluster().num_devices()),
        permanent_(costs.cluster().num_devices()) {}

  PlaceResult run(const CancelFlag* cancel) {
    if (const auto op = allowed_.first_impossible()) return DoesNotFit{*op, Bytes(0)};
    for (const OpId op : graph_.topological_order()) {
      if (device_[op].has_value()) continue;  // came with its group
      if (op.index() % 1024 == 0) throw_if_cancelled(cancel);
      const Unit unit = unit_of(op);
      const std::optional<DeviceId> device = choose(op, unit);
      if (!device.has_value()) return DoesNotFit{op, shortage(op, unit)};
      fill_[*device] += unit.need;
      permanent_[*device] += unit.permanent;
      for (const OpId member : unit.members) device_[member] = *device;
    }
    Placement placement;
    placement.reserve(graph_.num_ops());
    for (const OpId op : graph_.ops()) placement.push_back(*device_[op]);
    return in_topological_order(costs_, std::move(placement));
  }

 private:
  struct Unit {  // an operator, or its colocation group
    std::vector<OpId> members;
    Bytes need, permanent;
  };

  Unit unit_of(OpId op) const {
    Unit unit;
    if (const auto group = graph_[op].group) {
      const std::span<const OpId> members = graph_.members(*group);
      unit.members.assign(members.begin(), members.end());
    } else {
      unit.members = {op};
    }
    for (const OpId member : unit.members) {
      unit.need += plan_.need[member];
      unit.permanent += graph_[member].permanent;
    }
    return unit;
  }

  bool has_room(DeviceId device, const Unit& unit) const {
    return permanent_[device] + unit.permanent <= costs_.cluster()[device].capacity;
  }
  bool below_cap(DeviceId device, const Unit& unit) const {
    return fill_[device] + unit.need <= plan_.cap[device];
  }

  std::optional<DeviceId> choose(OpId op, const Unit& unit) {
    const std::size_t n = fill_.size();
    while (current_ + 1 < n && !below_cap(DeviceId(current_), unit)) ++current_;
    const auto takes = [&](DeviceId device) {
      return allowed_(op, device) && has_room(device, unit);
    };
    for (std::size_t step = 0; step < n; ++step) {
      const DeviceId device((current_ + step) % n);
      if (takes(device) && below_cap(device, unit)) return device;
    }
    // Restrictions have filled all the devices it may use: the one least over its cap.
    std::optional<DeviceId> best;
    for (const DeviceId device : fill_.keys()) {
      if (!takes(device)) continue;
      if (!best || fill_[device] - plan_.cap[device] < fill_[*best] - plan_.cap[*best])
        best = device;
    }
    return best;
  }

  Bytes shortage(OpId op, const Unit& unit) const {
    std::optional<Bytes> least;
    for (const DeviceId device : fill_.keys()) {
      if (!allowed_(op, device)) continue;
      const Bytes lacks = permanent_[device] + unit.permanent - costs_.cluster()[device].capacity;
      least = std::min(least.value_or(lacks), lacks);
    }
    return least.value_or(Bytes(0));
  }

  const CostModel& costs_;
  const OpGraph& graph_;
  const FillPlan& plan_;
  AllowedDevices allowed_;
  IdVector<OpId, std::optional<DeviceId>> device_;
  IdVector<DeviceId, Bytes> fill_, permanent_;
  std::size_t current_ = 0;
};

// The first operator, in topological order, on the device that overflows most when everything is
// kept until the step ends.
std::optional<DoesNotFit> reservation_failure(const CostModel& costs, const Placement& placement) {
  const IdVector<DeviceId, Bytes> reserved = reserved_bytes(costs, placement);
  std::optional<DeviceId> worst;
  Bytes short_by;
  for (const DeviceId device : reserved.keys()) {
    const Bytes over = reserved[device] - costs.cluster()[device].capacity;
    if (over <= short_by) continue;
    worst = device;
    short_by = over;
  }
  if (!worst.has_value()) return std::nullopt;
  for (const OpId op : costs.graph().topological_order())
    if (placement[op] == *worst) return DoesNotFit{op, short_by};
  return std::nullopt;
}

}  // namespace

PlaceResult fill_devices(const CostModel& costs, const FillPlan& plan,
                         const PlaceOptions& options) {
  PlaceResult result = Filler(costs, plan).run(options.cancel);
  if (options.memory == MemoryPolicy::kReserve)
    if (const auto* placed = std::get_if<PlacedGraph>(&result))
      if (const auto failure = reservation_failure(costs, placed->device)) return *failure;
  return result;
}

IdVector<OpId, Bytes> operator_needs(const OpGraph& graph) {
  IdVector<OpId, Bytes> needs(graph.num_ops());
  for (const OpId op : graph.ops())
    needs[op] = graph[op].permanent + graph[op].temporary + graph.output_bytes(op);
  return needs;
}

PlacedGraph in_topological_order(const CostModel& costs, Placement placement) {
  DeviceOrder order(costs.cluster().num_devices());
  for (const OpId op : costs.graph().topological_order()) order[placement[op]].push_back(op);
  return {std::move(placement), std::move(order)};
}

IdVector<DeviceId, Bytes> reserved_bytes(const CostModel& costs, const Placement& placement) {
  const OpGraph& graph = costs.graph();
  IdVector<DeviceId, Bytes> reserved(costs.cluster().num_devices());
  IdVector<DeviceId, Bytes> temporary(reserved.size());
  IdVector<DeviceId, std::optional<TensorId>> last_copy(reserved.size());
  for (const OpId op : graph.ops()) {
    const DeviceId home = placement[op];
    reserved[home] += graph[op].permanent + graph.output_bytes(op);
    temporary[home] = std::max(temporary[home], graph[op].temporary);
    for (const Edge& edge : graph.out_edges(op)) {  // sorted by tensor: one mark per device does
      const DeviceId to = placement[edge.to];
      if (!edge.tensor.has_value() || to == home || last_copy[to] == edge.tensor) continue;
      last_copy[to] = edge.tensor;
      reserved[to] += graph.size(*edge.tensor);
    }
  }
  for (const DeviceId device : reserved.keys()) reserved[device] += temporary[device];
  return reserved;
}

}  // namespace baechi
