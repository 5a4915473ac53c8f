// SPDX-License-Identifier: Apache-2.0
#include "baechi/bounds/relaxation.h"

#include <algorithm>

#include "baechi/base/wide.h"

namespace baechi::bounds {
namespace {

bool same_link(const Link& a, const Link& b) {
  return a.latency == b.latency && a.bandwidth == b.bandwidth;
}

bool interchangeable(const CostModel& costs, DeviceId a, DeviceId b) {
  const Cluster& cluster = costs.cluster();
  if (costs.class_of(a) != costs.class_of(b) || cluster[a].capacity != cluster[b].capacity)
    return false;
  if (!same_link(cluster.link(a, b), cluster.link(b, a))) return false;
  return std::ranges::all_of(cluster.devices(), [&](DeviceId other) {
    return other == a || other == b ||
           (same_link(cluster.link(a, other), cluster.link(b, other)) &&
            same_link(cluster.link(other, a), cluster.link(other, b)));
  });
}

// The first device of every type, in order, and the type of every device.
struct Typing {
  std::vector<DeviceId> first;
  IdVector<DeviceId, std::size_t> type_of;
};

Typing type_devices(const CostModel& costs) {
  IdVector<DeviceId, bool> pinned_to(costs.cluster().num_devices(), false);
  for (const OpId op : costs.graph().ops())
    if (const auto device = costs.pin(op)) pinned_to[*device] = true;
  Typing typing;
  for (const DeviceId device : costs.cluster().devices()) {
    std::size_t type = 0;
    while (type < typing.first.size() && (pinned_to[device] || pinned_to[typing.first[type]] ||
                                          !interchangeable(costs, typing.first[type], device)))
      ++type;
    if (type == typing.first.size()) typing.first.push_back(device);
    typing.type_of.push_back(type);
  }
  return typing;
}

void add_links(const CostModel& costs, const Typing& typing, Relaxation& relaxed) {
  const OpGraph& graph = costs.graph();
  const Cluster& cluster = costs.cluster();
  const std::size_t num_types = relaxed.num_types();
  std::vector<const Link*> links;
  relaxed.link.resize(num_types * num_types);
  for (const DeviceId from : cluster.devices())
    for (const DeviceId to : cluster.devices()) {
      if (from == to) continue;
      const Link& link = cluster.link(from, to);
      const auto known =
          std::ranges::find_if(links, [&](const Link* other) { return same_link(*other, link); });
      relaxed.link[typing.type_of[from] * num_types + typing.type_of[to]] =
          static_cast<std::size_t>(known - links.begin());
      if (known == links.end()) links.push_back(&link);
    }
  relaxed.num_links = links.size();
  relaxed.c.resize(graph.num_tensors() * links.size());
  relaxed.c_min.assign(graph.num_tensors(), kNever);
  for (const TensorId tensor : graph.tensors())
    for (std::size_t l = 0; l < links.size(); ++l) {
      const Ns time = links[l]->transfer_time(graph.size(tensor)).count();
      relaxed.c[tensor.index() * links.size() + l] = time;
      relaxed.c_min[tensor.index()] = std::min(relaxed.c_min[tensor.index()], time);
    }
}

// Operators with pins to one device share a unit too, and so do their groups.
void add_units(const CostModel& costs, Relaxation& relaxed) {
  const OpGraph& graph = costs.graph();
  std::vector<std::optional<UnitId>> of_group(graph.num_groups());
  IdVector<DeviceId, std::optional<UnitId>> of_pin(costs.cluster().num_devices());
  std::size_t num_units = 0;
  relaxed.unit.reserve(graph.num_ops());
  std::vector<std::optional<DeviceId>> pin_of_group(graph.num_groups());
  for (const OpId op : graph.ops())
    if (graph[op].group.has_value() && costs.pin(op).has_value())
      pin_of_group[graph[op].group->index()] = costs.pin(op);
  for (const OpId op : graph.ops()) {
    std::optional<DeviceId> pin = costs.pin(op);
    const std::optional<GroupId> group = graph[op].group;
    if (group.has_value() && pin_of_group[group->index()].has_value())
      pin = pin_of_group[group->index()];
    std::optional<UnitId> lone;
    std::optional<UnitId>& unit = pin.has_value()     ? of_pin[*pin]
                                  : group.has_value() ? of_group[group->index()]
                                                      : lone;
    if (!unit.has_value()) unit = UnitId(num_units++);
    relaxed.unit.push_back(*unit);
  }
  relaxed.held.assign(num_units, 0);
}

// What lives from its producer's start until the step ends. Of an operator that takes time, all of
// it lives at the moment when the last such operator of its device starts.
std::int64_t kept_outputs(const OpGraph& graph, OpId op) {
  const bool retained = graph.retains_outputs(op);
  std::int64_t bytes = 0;
  for (const TensorId tensor : graph.outputs(op))
    if (retained || graph.consumers(tensor).empty()) bytes += graph.home_size(tensor).count();
  return bytes;
}

// Forbids devices that could not even hold what an operator needs while it runs.
void add_memory(const CostModel& costs, Relaxation& relaxed) {
  const OpGraph& graph = costs.graph();
  const std::size_t num_types = relaxed.num_types();
  IdVector<UnitId, std::int64_t>& permanent = relaxed.permanent;
  IdVector<UnitId, std::int64_t>& running = relaxed.running;
  permanent.assign(relaxed.held.size(), 0);
  running.assign(relaxed.held.size(), 0);
  for (const OpId op : graph.ops()) {
    const UnitId unit = relaxed.unit[op];
    std::int64_t needs = graph[op].temporary.count() + graph.output_bytes(op).count();
    // What an operator reads may be over at the moment at which it starts and ends.
    if (relaxed.k_min[op.index()] > 0)
      for (const Edge& edge : graph.in_edges(op))
        if (edge.tensor.has_value()) needs += graph.home_size(*edge.tensor).count();
    running[unit] = std::max(running[unit], needs);
    permanent[unit] += graph[op].permanent.count();
    relaxed.held[unit] += graph[op].permanent.count();
    if (relaxed.k_min[op.index()] > 0) relaxed.held[unit] += kept_outputs(graph, op);
  }
  for (const OpId op : graph.ops()) {
    const UnitId unit = relaxed.unit[op];
    const std::int64_t needs = std::max(relaxed.held[unit], permanent[unit] + running[unit]);
    Ns& least = relaxed.k_min[op.index()];
    least = kNever;
    for (std::size_t type = 0; type < num_types; ++type) {
      Ns& time = relaxed.k[op.index() * num_types + type];
      if (needs > relaxed.types[type].capacity) time = kNever;
      least = std::min(least, time);
    }
  }
}

// A unit may only go where all of its operators may.
void restrict_units(Relaxation& relaxed) {
  const std::size_t num_types = relaxed.num_types();
  std::vector<bool> allowed(relaxed.held.size() * num_types, true);
  for (const OpId op : relaxed.unit.keys())
    for (std::size_t type = 0; type < num_types; ++type)
      if (relaxed.time(op, type) >= kNever)
        allowed[relaxed.unit[op].index() * num_types + type] = false;
  for (const OpId op : relaxed.unit.keys()) {
    Ns& least = relaxed.k_min[op.index()];
    least = kNever;
    for (std::size_t type = 0; type < num_types; ++type) {
      Ns& time = relaxed.k[op.index() * num_types + type];
      if (!allowed[relaxed.unit[op].index() * num_types + type]) time = kNever;
      least = std::min(least, time);
    }
  }
}

// Whether all times, added up, stay well within the numbers that the bounds calculate with.
bool totals_fit(const Relaxation& relaxed) {
  WideInt work = 0;
  for (const Ns k : relaxed.k)
    if (k < kNever) work += k;
  WideInt communication = 0;
  for (const Ns c : relaxed.c) communication += c;
  WideInt memory = 0;
  for (const std::int64_t held : relaxed.held) memory += held;
  return work + communication * static_cast<WideInt>(relaxed.num_devices) < kNever &&
         memory < kNever;
}

}  // namespace

std::optional<Relaxation> relax(const CostModel& costs) {
  const OpGraph& graph = costs.graph();
  const Cluster& cluster = costs.cluster();
  const Typing typing = type_devices(costs);
  Relaxation relaxed;
  relaxed.graph = &graph;
  relaxed.num_devices = cluster.num_devices();
  relaxed.transfers_queue = cluster.communication() != CommunicationMode::kParallel;
  relaxed.queues_both_ways = cluster.communication() == CommunicationMode::kDuplex;
  for (const DeviceId device : typing.first)
    relaxed.types.push_back({0, cluster[device].capacity.count()});
  for (const std::size_t type : typing.type_of) ++relaxed.types[type].count;
  const std::size_t num_types = relaxed.num_types();

  add_links(costs, typing, relaxed);
  relaxed.k.assign(graph.num_ops() * num_types, kNever);
  relaxed.k_min.assign(graph.num_ops(), kNever);
  for (std::size_t type = 0; type < num_types; ++type) {
    const auto& times = costs.class_times(costs.class_of(typing.first[type]));
    for (const OpId op : graph.ops())
      if (times[op].has_value() && costs.pin(op).value_or(typing.first[type]) == typing.first[type])
        relaxed.k[op.index() * num_types + type] = times[op]->count();
  }
  for (const OpId op : graph.ops())
    for (std::size_t type = 0; type < num_types; ++type)
      relaxed.k_min[op.index()] = std::min(relaxed.k_min[op.index()], relaxed.time(op, type));
  add_units(costs, relaxed);
  if (!totals_fit(relaxed)) return std::nullopt;
  restrict_units(relaxed);
  add_memory(costs, relaxed);
  restrict_units(relaxed);
  if (std::ranges::any_of(relaxed.k_min, [](Ns k) { return k >= kNever; })) return std::nullopt;
  return relaxed;
}

}  // namespace baechi::bounds
