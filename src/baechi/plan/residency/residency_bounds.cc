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

// And, of copies that are apart, without an order of these.
OpGraph without_groups(const OpGraph& graph, const Unrolled* apart) {
  OpGraphBuilder builder(graph.name());
  builder.set_memory_mode(graph.memory_mode());
  for (const OpId op : graph.ops()) {
    OperatorSpec spec = spec_of(graph[op]);
    spec.name = graph[op].name;
    spec.forward = graph[op].forward;
    builder.add_operator(spec);
    builder.set_times(op, graph, op);
    for (const TensorId tensor : graph.outputs(op)) builder.add_output(op, graph.size(tensor));
  }
  for (const OpId op : graph.ops())
    for (const Edge& edge : graph.out_edges(op)) {
      if (!edge.tensor.has_value()) {
        const bool copies = apart != nullptr && apart->original[op] == apart->original[edge.to];
        if (copies && !apart->is_sum(edge.to)) continue;
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
  double first = 0;  // of the link from the host, before the host or the link to it begins

  double weighed(const Takes& by) const {
    return host * by.host + down * by.down + up * by.up + first * by.first;
  }
};

struct Crossing {
  double held = 0;  // bytes
  Takes on_store;
  std::optional<Takes> streamed;  // where it may be
  double beside = 0;              // bytes: streamed, so much is on the device at once

  // Where nothing is streamed that takes more at once than this.
  double least(const Takes& weights, double most) const {
    const double there = on_store.weighed(weights);
    return streamed.has_value() && beside <= most ? std::min(there, streamed->weighed(weights))
                                                  : there;
  }
};

// What stays is beside all that is streamed, and has the less room the larger that is.
struct Room {
  double largest = 0;  // of what is streamed, in bytes
  double left = 0;     // at the most
};

double nanoseconds(Bytes bytes, const Link& link) {
  if (!link.bandwidth.has_value()) return 0;
  return 1e9 * static_cast<double>(bytes.count()) / static_cast<double>(link.bandwidth->count());
}

// What an operator holds while it runs, on whatever device that is: what it makes, and what it
// reads, where it takes time and so has all of that at once. Nothing otherwise.
Bytes held_at_once(const CostModel& costs, OpId op, bool with_variables) {
  const OpGraph& graph = costs.graph();
  const DeviceId store = store_of(costs.cluster());
  for (const DeviceId device : costs.cluster().devices())
    if (device != store && costs.compute_time(op, device) == Time(0)) return Bytes(0);
  Bytes bytes = graph[op].temporary + graph.output_bytes(op);
  std::vector<TensorId> read;
  for (const Edge& edge : graph.in_edges(op))
    if (edge.tensor.has_value() && (with_variables || !graph[edge.from].variable))
      read.push_back(*edge.tensor);
  std::ranges::sort(read);
  read.erase(std::unique(read.begin(), read.end()), read.end());
  for (const TensorId tensor : read) bytes += graph.size(tensor);
  return bytes;
}

// What a unit on the store makes cross the link at the least: what operators elsewhere read of it, once,
// and what its updates read of them; streamed, all of it both ways.
Crossing crossing_of(const CostModel& costs, const StepGraph& step, const StoredUnit& unit,
                     const Link& from, const Link& to, const IdVector<OpId, bool>& before_all) {
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
    if (std::ranges::any_of(edges, [&](const Edge& edge) {
          return edge.tensor.has_value() && before_all[edge.to];
        }))
      there.first += nanoseconds(graph[op].permanent, from);
  }
  if (unit.may_stream) {
    crossing.streamed =
        Takes{0, nanoseconds(unit.bytes, from), nanoseconds(unit.bytes, to), there.first};
    for (const OpId op : unit.members)
      if (!graph[op].variable)
        crossing.beside = static_cast<double>(held_at_once(costs, op, true).count());
  }
  return crossing;
}

// The least that the units together take, weighed, where some that have room take nothing.
double least(const std::vector<Crossing>& units, const Room& there, const Takes& weights) {
  std::vector<std::pair<double, double>> all;  // takes, holds
  for (const Crossing& unit : units)
    all.emplace_back(unit.least(weights, there.largest), unit.held);
  double room = there.left;
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
double least_whole(const std::vector<Crossing>& units, const Room& limits, const Takes& weights) {
  const double room = limits.left;
  const double cell = std::max(1.0, room / static_cast<double>(kCells));
  std::vector<double> stays(static_cast<std::size_t>(room / cell) + 1);  // the most, by cells
  double sum = 0;
  for (const Crossing& unit : units) {
    const double takes = unit.least(weights, limits.largest);
    sum += takes;
    if (unit.held > room) continue;
    const auto cells = static_cast<std::size_t>(unit.held / cell);
    for (std::size_t there = stays.size(); there-- > cells;)
      stays[there] = std::max(stays[there], stays[there - cells] + takes);
  }
  return sum - stays.back();
}

// The most that some operator needs beside variables.
Bytes beside_variables(const CostModel& costs, const StepGraph& step) {
  const OpGraph& graph = costs.graph();
  Bytes most;
  for (const OpId op : graph.ops())
    if (!graph[op].variable && !is_update(step, op))
      most = std::max(most, held_at_once(costs, op, false));
  return most;
}

// Of all that devices have, by the largest of what is streamed: of very many, some together, which
// may then all be streamed beside the least of them.
std::vector<Room> rooms_of(const std::vector<Crossing>& units, double all, double beside) {
  constexpr std::size_t kMost = 8;
  std::vector<double> larger;
  for (const Crossing& unit : units)
    if (unit.streamed.has_value() && unit.beside > beside) larger.push_back(unit.beside);
  std::ranges::sort(larger);
  larger.erase(std::unique(larger.begin(), larger.end()), larger.end());
  std::vector<Room> rooms{{beside, std::max(all - beside, 0.0)}};
  const std::size_t together = (larger.size() + kMost - 1) / kMost;
  for (std::size_t i = 0; i < larger.size(); i += together) {
    const std::size_t last = std::min(i + together, larger.size()) - 1;
    rooms.push_back({larger[last], std::max(all - larger[i], 0.0)});
  }
  return rooms;
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

// One inequality: what the units take, weighed so, and what the step takes beside that.
struct Corner {
  Takes weights;
  double before = 0;
};

// Parts of the first corners, of the largest value: up a concave bound lead smaller and smaller shifts.
template <class Bound, class Value>
Corner heaviest(const std::vector<Corner>& corners, const Bound& bound, const Value& value) {
  constexpr double kLeastShift = 1.0 / 1024;
  std::vector<double> parts(corners.size());
  const auto mixed = [&] {
    Corner mix;
    for (std::size_t i = 0; i < corners.size(); ++i) {
      for (const auto each : {&Takes::host, &Takes::down, &Takes::up, &Takes::first})
        mix.weights.*each += parts[i] * corners[i].weights.*each;
      mix.before += parts[i] * corners[i].before;
    }
    return mix;
  };
  Corner heaviest = corners.front();
  for (std::size_t first = 2; first <= corners.size(); ++first) {
    std::fill_n(parts.begin(), first, 1.0 / static_cast<double>(first));
    double best = bound(mixed());
    for (double shift = 0.25; shift >= kLeastShift;) {
      bool better = false;
      for (std::size_t i = 0; i < first; ++i)
        for (std::size_t j = 0; j < first; ++j) {
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
    if (value(mixed()) > value(heaviest)) heaviest = mixed();
  }
  return heaviest;
}

// Paths are those of `free`, the graph without groups.
void add_traffic(const CostModel& costs, const CostModel& free, const StepGraph& step,
                 const Unrolled* apart, std::vector<NamedBound>& bounds) {
  const OpGraph& graph = costs.graph();
  const Cluster& cluster = costs.cluster();
  if (cluster.communication() == CommunicationMode::kParallel) return;
  const DeviceId store = store_of(cluster);
  for (const OpId op : graph.ops())  // what the host runs needs no link
    if (!graph[op].variable && !is_update(step, op) && costs.may_run(op, store)) return;
  const Link from = fastest(cluster, store, true), to = fastest(cluster, store, false);
  const std::vector<StoredUnit> stored = units_for_store(costs, step, store);
  std::vector<Crossing> units;
  std::vector<OpId> updates;
  for (const OpId op : graph.ops())
    if (is_update(step, op)) updates.push_back(op);
  const std::vector<OpId> senders = first_senders(step, graph, stored, apart);
  std::vector<OpId> first_ends = senders;
  first_ends.insert(first_ends.end(), updates.begin(), updates.end());
  const IdVector<OpId, bool> before_all = before_all_of(step, graph, first_ends);
  for (const StoredUnit& unit : stored)
    units.push_back(crossing_of(costs, step, unit, from, to, before_all));
  Bytes there;
  for (const DeviceId device : cluster.devices())
    if (device != store) there += cluster[device].capacity;
  const std::vector<Room> rooms =
      rooms_of(units, static_cast<double>(there.count()),
               static_cast<double>(beside_variables(costs, step).count()));
  const auto earliest = [&](const std::vector<OpId>& ends) {
    const Time time = cluster.num_devices() == 2
                          ? least_work(costs, step, DeviceId(1 - store.index()), ends)
                          : shortest_path(free, step, store, ends);  // they may work side by side
    return static_cast<double>(time.count());
  };
  const double before = earliest(updates);
  const Corner host{{.host = 1}, before}, down{{.down = 1}};
  const Corner up{{.up = 1}, earliest(senders)};
  const Corner host_later{{.host = 1, .first = 1}}, up_later{{.up = 1, .first = 1}};
  // Of parts of the corners, in each room. Rounded down by a millionth, so that no rounding makes it
  // too large.
  const auto add = [&](const char* name, const std::vector<Corner>& corners) {
    std::optional<double> shortest;
    Corner last;  // where another room takes as long there, it is not the shortest
    for (const Room& room : rooms) {
      const auto bound = [&](const Corner& corner) {  // by parts of units
        return corner.before + least(units, room, corner.weights);
      };
      const auto value = [&](const Corner& corner) {  // nothing if no unit need take anything
        const double takes =
            std::max(least(units, room, corner.weights), least_whole(units, room, corner.weights));
        return takes > 0 ? corner.before + takes : 0;
      };
      if (shortest.has_value() && value(last) >= *shortest) continue;
      last = heaviest(corners, bound, value);
      const double found = value(last);
      shortest = std::min(shortest.value_or(found), found);
    }
    bounds.push_back({name, Time(static_cast<std::int64_t>(*shortest * (1 - 1e-6)))});
  };
  add("updates on the host", {host});
  add("traffic from the host", {down});
  add("traffic to the host", {up});
  const bool one_queue =
      cluster.communication() == CommunicationMode::kSequential && from.bandwidth == to.bandwidth;
  const Corner both{{.down = 1, .up = 1}};
  if (one_queue) add("traffic", {both});
  add("updates and traffic", {host, one_queue ? both : down, up, host_later, up_later});
  std::erase_if(bounds, [](const NamedBound& one) { return one.value <= Time(0); });
}

}  // namespace

std::vector<NamedBound> residency_bounds(const ResidencyProblem& problem, bool copies_apart) {
  const CostModel& costs = problem.costs;
  const Unrolled* apart = copies_apart && problem.step.micro_batches > 1 ? &problem.step : nullptr;
  const OpGraph graph = without_groups(costs.graph(), apart);
  ClusterSpec spec = costs.cluster().spec();
  Bytes room(1);
  for (const OpId op : graph.ops())
    room += graph[op].permanent + graph[op].temporary +
            graph.output_bytes(op) * static_cast<std::int64_t>(spec.devices.size() + 1);
  for (Device& device : spec.devices) device.capacity = std::max(device.capacity, room);
  const Cluster cluster(std::move(spec));
  std::vector<NamedBound> bounds = lower_bounds(CostModel(graph, cluster));
  add_traffic(costs, CostModel(graph, costs.cluster()), problem.step, apart, bounds);
  std::ranges::sort(bounds, [](const NamedBound& a, const NamedBound& b) {
    return a.value != b.value ? a.value > b.value : a.name < b.name;
  });
  return bounds;
}

}  // namespace baechi
