// SPDX-License-Identifier: Apache-2.0
#include "baechi/plan/residency/residency_bounds.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

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

// What a unit that does not stay takes, in nanoseconds: of the host, and of the link each way.
struct Takes {
  double host = 0, down = 0, up = 0;

  double weighed(const Takes& by) const { return host * by.host + down * by.down + up * by.up; }
};

struct Crossing {
  double held = 0;  // bytes
  Takes on_store;
  std::optional<Takes> streamed;  // where it may be

  double least(const Takes& weights) const {
    const double there = on_store.weighed(weights);
    return streamed.has_value() ? std::min(there, streamed->weighed(weights)) : there;
  }
};

double nanoseconds(Bytes bytes, const Link& link) {
  if (!link.bandwidth.has_value()) return 0;
  return 1e9 * static_cast<double>(bytes.count()) / static_cast<double>(link.bandwidth->count());
}

// What a unit on the store makes cross the link at the least: what operators elsewhere read of it, once,
// and what its updates read of them; streamed, all of it both ways.
Crossing crossing_of(const CostModel& costs, const StepGraph& step, const StoredUnit& unit,
                     const Link& from, const Link& to) {
  const OpGraph& graph = costs.graph();
  Crossing crossing;
  crossing.held = static_cast<double>(unit.bytes.count());
  Takes& there = crossing.on_store;
  there.host = static_cast<double>(unit.on_host.count());
  for (const OpId op : unit.members) {
    if (!graph[op].variable) {
      for (const Edge& edge : graph.in_edges(op))
        if (edge.tensor.has_value() && !graph[edge.from].variable && !is_update(step, edge.from))
          there.up += nanoseconds(graph.size(*edge.tensor), to);
      continue;
    }
    const auto edges = graph.out_edges(op);
    if (std::ranges::any_of(edges, [&](const Edge& edge) {
          return edge.tensor.has_value() && !is_update(step, edge.to);
        }))
      there.down += nanoseconds(graph[op].permanent, from);
  }
  if (unit.may_stream)
    crossing.streamed = Takes{0, nanoseconds(unit.bytes, from), nanoseconds(unit.bytes, to)};
  return crossing;
}

// The least that the units together take, weighed, where some that hold `room` at most take nothing.
double least(const std::vector<Crossing>& units, double room, const Takes& weights) {
  std::vector<std::pair<double, double>> all;  // takes, holds
  for (const Crossing& unit : units) all.emplace_back(unit.least(weights), unit.held);
  std::ranges::sort(
      all, [](const auto& a, const auto& b) { return a.first * b.second > b.first * a.second; });
  double sum = 0;
  for (const auto& [takes, held] : all) {
    const double part = held > 0 ? std::min(1.0, room / held) : 1.0;
    room -= part * held;
    sum += (1 - part) * takes;
  }
  return sum;
}

constexpr std::size_t kCells = 4096;  // of the room, in which bytes are rounded down

// The same, where no unit is cut.
double least_whole(const std::vector<Crossing>& units, double room, const Takes& weights) {
  const double cell = std::max(1.0, room / static_cast<double>(kCells));
  std::vector<double> stays(static_cast<std::size_t>(room / cell) + 1);  // the most, by cells
  double sum = 0;
  for (const Crossing& unit : units) {
    const double takes = unit.least(weights);
    sum += takes;
    if (unit.held > room) continue;
    const auto cells = static_cast<std::size_t>(unit.held / cell);
    for (std::size_t there = stays.size(); there-- > cells;)
      stays[there] = std::max(stays[there], stays[there - cells] + takes);
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

// Parts of the corners, of the largest bound: a concave function, up which smaller and smaller shifts from
// one corner to another lead.
template <class Bound>
Takes heaviest(const std::vector<Takes>& corners, const Bound& bound) {
  constexpr double kLeastShift = 1.0 / 512;
  std::vector<double> parts(corners.size(), 1.0 / static_cast<double>(corners.size()));
  const auto mixed = [&] {
    Takes mix;
    for (std::size_t i = 0; i < corners.size(); ++i) {
      mix.host += parts[i] * corners[i].host;
      mix.down += parts[i] * corners[i].down;
      mix.up += parts[i] * corners[i].up;
    }
    return mix;
  };
  double best = bound(mixed());
  for (double shift = 0.25; shift >= kLeastShift;) {
    bool better = false;
    for (std::size_t i = 0; i < parts.size(); ++i)
      for (std::size_t j = 0; j < parts.size(); ++j) {
        const std::vector<double> before = parts;
        const double moved = std::min(shift, parts[i]);
        parts[i] -= moved;
        parts[j] += moved;
        const double found = bound(mixed());
        if (found > best) {
          best = found;
          better = true;
        } else {
          parts = before;
        }
      }
    if (!better) shift /= 2;
  }
  return mixed();
}

void add_traffic(const CostModel& costs, const StepGraph& step, std::vector<NamedBound>& bounds) {
  const Cluster& cluster = costs.cluster();
  if (cluster.communication() == CommunicationMode::kParallel) return;
  const DeviceId store = store_of(cluster);
  for (const OpId op : costs.graph().ops())  // what the host runs needs no link
    if (!costs.graph()[op].variable && !is_update(step, op) && costs.may_run(op, store)) return;
  const Link from = fastest(cluster, store, true), to = fastest(cluster, store, false);
  std::vector<Crossing> units;
  for (const StoredUnit& unit : units_for_store(costs, step, store))
    units.push_back(crossing_of(costs, step, unit, from, to));
  double room = 0;
  for (const DeviceId device : cluster.devices())
    if (device != store) room += static_cast<double>(cluster[device].capacity.count());
  room = std::max(0.0, room - static_cast<double>(beside_variables(costs, step).count()));
  // What several devices do first they may do side by side.
  const Time before = cluster.num_devices() == 2
                          ? before_updates(costs, step, DeviceId(1 - store.index()))
                          : path_to_updates(costs, step, store);
  const auto bound = [&](const Takes& weights) {  // by parts of units
    return weights.host * static_cast<double>(before.count()) + least(units, room, weights);
  };
  // Rounded down by a millionth, so that no rounding makes it too large.
  const auto add = [&](const char* name, const Takes& weights) {
    const double takes =
        std::max(least(units, room, weights), least_whole(units, room, weights)) * (1 - 1e-6);
    const double first = weights.host * static_cast<double>(before.count());
    if (takes > 0) bounds.push_back({name, Time(static_cast<std::int64_t>(takes + first))});
  };
  const bool one_queue =
      cluster.communication() == CommunicationMode::kSequential && from.bandwidth == to.bandwidth;
  std::vector<Takes> corners{{1, 0, 0}, {0, 1, 0}, {0, 0, 1}};
  add("updates on the host", corners[0]);
  add("traffic from the host", corners[1]);
  add("traffic to the host", corners[2]);
  if (one_queue) {
    corners.erase(corners.begin() + 1, corners.end());
    corners.push_back({0, 1, 1});
    add("traffic", corners[1]);
  }
  add("updates and traffic", heaviest(corners, bound));
  std::erase_if(bounds, [](const NamedBound& one) { return one.value == Time(0); });
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
