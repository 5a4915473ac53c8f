// SPDX-License-Identifier: Apache-2.0
#include "baechi/plan/residency/residency_bounds.h"

#include <algorithm>
#include <cstdint>
#include <optional>

#include "baechi/bounds/lower_bounds.h"
#include "baechi/graph/op_graph_builder.h"
#include "baechi/plan/residency/residency_choice.h"
#include "baechi/plan/residency/stored_units.h"

namespace baechi {
namespace {

OpGraph without_groups(const OpGraph& graph) {
  OpGraphBuilder builder(graph.name());
  builder.set_memory_mode(graph.memory_mode());
  for (const OpId op : graph.ops()) {
    OperatorSpec spec = spec_of(graph[op]);
    spec.name = graph[op].name;
    spec.forward = graph[op].forward;
    builder.add_operator(spec);
    for (const KindId kind : graph.kinds())
      if (const auto time = graph.times(kind)[op]; time.has_value())
        builder.set_time(op, graph.kind_name(kind), *time);
    for (const TensorId tensor : graph.outputs(op)) builder.add_output(op, graph.size(tensor));
  }
  for (const OpId op : graph.ops())
    for (const Edge& edge : graph.out_edges(op)) {
      if (!edge.tensor.has_value()) {
        builder.add_control_edge(op, edge.to);
        continue;
      }
      const std::size_t port = edge.tensor->index() - (*graph.outputs(op).begin()).index();
      builder.connect(*builder.output(op, port), edge.to);
    }
  for (const auto& [op, variable] : graph.writes()) builder.add_write(op, variable);
  return std::move(builder).build();
}

struct Crossing {  // of a unit that is on the store, in bytes
  double held = 0, down = 0, up = 0;
  double update = 0;  // nanoseconds
};

// What a unit on the store makes cross the link at the least: what operators elsewhere read of it, once,
// and what its updates read of them.
Crossing crossing_of(const CostModel& costs, const StepGraph& step, const StoredUnit& unit,
                     DeviceId store) {
  const OpGraph& graph = costs.graph();
  Crossing crossing{.held = static_cast<double>(unit.bytes.count())};
  for (const OpId op : unit.members) {
    if (!graph[op].variable) {
      crossing.update += static_cast<double>(costs.compute_time(op, store)->count());
      for (const Edge& edge : graph.in_edges(op))
        if (edge.tensor.has_value() && !graph[edge.from].variable && !is_update(step, edge.from))
          crossing.up += static_cast<double>(graph.size(*edge.tensor).count());
      continue;
    }
    const auto edges = graph.out_edges(op);
    if (std::ranges::any_of(edges, [&](const Edge& edge) {
          return edge.tensor.has_value() && !is_update(step, edge.to);
        }))
      crossing.down += static_cast<double>(graph[op].permanent.count());
  }
  return crossing;
}

// The least that the units together send, where some that hold `room` at most send nothing.
double least(std::vector<Crossing> units, double room, double Crossing::* bytes) {
  std::ranges::sort(units, [&](const Crossing& a, const Crossing& b) {
    return a.*bytes * b.held > b.*bytes * a.held;
  });
  double sum = 0;
  for (const Crossing& unit : units) {
    const double part = unit.held > 0 ? std::min(1.0, room / unit.held) : 1.0;
    room -= part * unit.held;
    sum += (1 - part) * unit.*bytes;
  }
  return sum;
}

constexpr std::size_t kCells = 4096;  // of the room, in which bytes are rounded down

// The same, where no unit is cut.
double least_whole(const std::vector<Crossing>& units, double room, double Crossing::* bytes) {
  const double cell = std::max(1.0, room / static_cast<double>(kCells));
  std::vector<double> stays(static_cast<std::size_t>(room / cell) + 1);  // the most, by cells
  double sum = 0;
  for (const Crossing& unit : units) {
    sum += unit.*bytes;
    if (unit.held > room) continue;
    const auto cells = static_cast<std::size_t>(unit.held / cell);
    for (std::size_t there = stays.size(); there-- > cells;)
      stays[there] = std::max(stays[there], stays[there - cells] + unit.*bytes);
  }
  return sum - stays.back();
}

// The most that some operator needs beside variables on whatever device runs it: what it reads and
// makes, where it takes time and so has all of that at once.
Bytes beside_variables(const CostModel& costs, const StepGraph& step) {
  const OpGraph& graph = costs.graph();
  Bytes most;
  for (const OpId op : graph.ops()) {
    if (graph[op].variable || is_update(step, op)) continue;
    const bool takes_time = std::ranges::all_of(costs.cluster().devices(), [&](DeviceId device) {
      return costs.compute_time(op, device) != Time(0);
    });
    if (!takes_time) continue;
    Bytes bytes = graph[op].temporary + graph.output_bytes(op);
    std::vector<TensorId> read;
    for (const Edge& edge : graph.in_edges(op))
      if (edge.tensor.has_value() && !graph[edge.from].variable) read.push_back(*edge.tensor);
    std::ranges::sort(read);
    read.erase(std::unique(read.begin(), read.end()), read.end());
    for (const TensorId tensor : read) bytes += graph.size(tensor);
    most = std::max(most, bytes);
  }
  return most;
}

// Rounded down by a millionth, so that no rounding makes it too large.
Time over(double bytes, const Link& link) {
  if (!link.bandwidth.has_value()) return Time(0);
  const double seconds = bytes / static_cast<double>(link.bandwidth->count());
  return Time(static_cast<std::int64_t>(seconds * 1e9 * (1 - 1e-6)));
}

// The device works off all that an update waits for, one operator after the other, before the update
// that does so the earliest.
Time before_updates(const CostModel& costs, const StepGraph& step, DeviceId device) {
  const OpGraph& graph = costs.graph();
  std::optional<Time> least;
  for (const OpId update : graph.ops()) {
    if (!is_update(step, update)) continue;
    IdVector<OpId, bool> seen(graph.num_ops());
    std::vector<OpId> left{update};
    Time before;
    while (!left.empty()) {
      const OpId op = left.back();
      left.pop_back();
      for (const Edge& edge : graph.in_edges(op)) {
        if (seen[edge.from]) continue;
        seen[edge.from] = true;
        left.push_back(edge.from);
        if (!is_update(step, edge.from) && !graph[edge.from].variable)
          before += costs.compute_time(edge.from, device).value_or(Time(0));
      }
      if (least.has_value() && before >= *least) break;
    }
    if (!least.has_value() || before < *least) least = before;
  }
  return least.value_or(Time(0));
}

// On the fastest devices, the path to the update that has the shortest.
Time path_to_updates(const CostModel& costs, const StepGraph& step, DeviceId store) {
  const OpGraph& graph = costs.graph();
  IdVector<OpId, Time> ready(graph.num_ops());
  std::optional<Time> least;
  for (const OpId op : graph.topological_order()) {
    const bool update = is_update(step, op);
    if (update && (!least.has_value() || ready[op] < *least)) least = ready[op];
    std::optional<Time> runs;
    for (const DeviceId device : costs.cluster().devices())
      if (const auto time = costs.compute_time(op, device); device != store && time.has_value())
        runs = std::min(runs.value_or(*time), *time);
    const Time end = update ? ready[op] : ready[op] + runs.value_or(Time(0));
    for (const Edge& edge : graph.out_edges(op)) ready[edge.to] = std::max(ready[edge.to], end);
  }
  return least.value_or(Time(0));
}

// The fastest link to or from the store; without a bandwidth if one has none.
Link fastest(const Cluster& cluster, DeviceId store, bool from_store) {
  std::optional<Link> best;
  for (const DeviceId device : cluster.devices()) {
    if (device == store) continue;
    const Link& link = from_store ? cluster.link(store, device) : cluster.link(device, store);
    if (!link.bandwidth.has_value()) return link;
    if (!best.has_value() || *link.bandwidth > *best->bandwidth) best = link;
  }
  return *best;
}

void add_traffic(const CostModel& costs, const StepGraph& step, std::vector<NamedBound>& bounds) {
  const Cluster& cluster = costs.cluster();
  if (cluster.communication() == CommunicationMode::kParallel) return;
  const DeviceId store = store_of(cluster);
  for (const OpId op : costs.graph().ops())  // what the host runs needs no link
    if (!costs.graph()[op].variable && !is_update(step, op) && costs.may_run(op, store)) return;
  std::vector<Crossing> units;
  for (const StoredUnit& unit : units_for_store(costs, step, store))
    units.push_back(crossing_of(costs, step, unit, store));
  double room = 0;
  for (const DeviceId device : cluster.devices())
    if (device != store) room += static_cast<double>(cluster[device].capacity.count());
  room = std::max(0.0, room - static_cast<double>(beside_variables(costs, step).count()));
  const auto sent = [&](const std::vector<Crossing>& of, double Crossing::* bytes) {
    return std::max(least(of, room, bytes), least_whole(of, room, bytes));
  };
  const Link from = fastest(cluster, store, true), to = fastest(cluster, store, false);
  if (cluster.communication() == CommunicationMode::kSequential && from.bandwidth == to.bandwidth) {
    std::vector<Crossing> both = units;
    for (Crossing& unit : both) unit.down += unit.up;
    bounds.push_back({"traffic", over(sent(both, &Crossing::down), from)});
  }
  bounds.push_back({"traffic from the host", over(sent(units, &Crossing::down), from)});
  bounds.push_back({"traffic to the host", over(sent(units, &Crossing::up), to)});
  if (const double updates = sent(units, &Crossing::update); updates > 0) {
    // What several devices do first they may do side by side.
    const Time before = cluster.num_devices() == 2
                            ? before_updates(costs, step, DeviceId(1 - store.index()))
                            : path_to_updates(costs, step, store);
    bounds.push_back(
        {"updates on the host", Time(static_cast<std::int64_t>(updates * (1 - 1e-6))) + before});
  }
  std::erase_if(bounds, [](const NamedBound& bound) { return bound.value == Time(0); });
}

}  // namespace

std::vector<NamedBound> residency_bounds(const ResidencyProblem& problem) {
  const CostModel& costs = problem.costs;
  const OpGraph graph = without_groups(costs.graph());
  ClusterSpec spec = costs.cluster().spec();
  Bytes room(1);
  for (const OpId op : graph.ops())
    room += graph[op].permanent + graph[op].temporary +
            graph.output_bytes(op) * static_cast<std::int64_t>(spec.devices.size() + 1);
  for (Device& device : spec.devices) device.capacity = std::max(device.capacity, room);
  const Cluster cluster(std::move(spec));
  std::vector<NamedBound> bounds = lower_bounds(CostModel(graph, cluster));
  add_traffic(costs, problem.step, bounds);
  std::ranges::sort(bounds, [](const NamedBound& a, const NamedBound& b) {
    return a.value != b.value ? a.value > b.value : a.name < b.name;
  });
  return bounds;
}

}  // namespace baechi
