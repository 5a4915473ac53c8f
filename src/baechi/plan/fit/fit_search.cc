// SPDX-License-Identifier: Apache-2.0
#include "baechi/plan/fit/fit_search.h"

#include <algorithm>
#include <numeric>
#include <tuple>
#include <utility>

#include "baechi/place/topological_sequences.h"

namespace baechi {
namespace {

using Order = std::vector<OpId>;

// The operators by start: a topological sequence whose restrictions are the devices' orders.
Order by_start(const Schedule& schedule, const OpGraph& graph) {
  IdVector<OpId, std::size_t> rank(graph.num_ops());
  Order sequence(graph.topological_order().begin(), graph.topological_order().end());
  for (std::size_t i = 0; i < sequence.size(); ++i) rank[sequence[i]] = i;
  std::sort(sequence.begin(), sequence.end(), [&](OpId a, OpId b) {
    const OpSlot &x = schedule.slots[a], &y = schedule.slots[b];
    return std::tie(x.start, x.end, rank[a]) < std::tie(y.start, y.end, rank[b]);
  });
  return sequence;
}

bool kept_to_the_end(const OpGraph& graph, TensorId tensor) {
  return graph.consumers(tensor).empty() || graph.retains_outputs(graph.producer(tensor));
}

// Roughly what each unit adds to the memory of `device` at its peak.
IdVector<UnitId, Bytes> shares_of_peak(const CostModel& costs, const Units& units,
                                       const Trace& trace, DeviceId device) {
  const OpGraph& graph = costs.graph();
  const Time peak = trace.devices[device].peak_at;
  const auto& slots = trace.schedule.slots;
  IdVector<UnitId, Bytes> shares(units.size());
  for (const OpId op : graph.ops()) {
    if (slots[op].device != device) continue;
    Bytes& share = shares[units.of(op)];
    share += graph[op].permanent;
    if (slots[op].start <= peak && peak <= slots[op].end) share += graph[op].temporary;
    for (const Edge& edge : graph.in_edges(op))
      if (edge.tensor.has_value() && slots[edge.from].device != device &&
          slots[edge.from].end <= peak && peak <= slots[op].end)
        share += graph.size(*edge.tensor);
    if (slots[op].start > peak) continue;
    for (const TensorId tensor : graph.outputs(op)) {
      const auto consumers = graph.consumers(tensor);
      if (kept_to_the_end(graph, tensor) ||
          std::any_of(consumers.begin(), consumers.end(),
                      [&](const Edge& edge) { return slots[edge.to].end >= peak; }))
        share += graph.home_size(tensor);
    }
  }
  return shares;
}

}  // namespace

std::int64_t replay_cost(const OpGraph& graph) {
  constexpr std::int64_t kLeast = 50;
  return std::max(kLeast, static_cast<std::int64_t>(graph.num_ops()));
}

FitSearch::FitSearch(const CostModel& costs, const Units& units, const FitOptions& options)
    : costs_(costs),
      units_(units),
      options_(options),
      simulator_(costs),
      work_left_(options.simulated_ops) {}

PlacedGraph FitSearch::placed_by(const Assignment& assignment, const Sequence& sequence) const {
  PlacedGraph placed{Placement(sequence.size(), DeviceId(0)),
                     DeviceOrder(costs_.cluster().num_devices())};
  for (const OpId op : sequence) {
    const DeviceId device = assignment[units_.of(op)];
    placed.device[op] = device;
    (*placed.order)[device].push_back(op);
  }
  return as_executed(std::move(placed), options_.order, costs_.graph(),
                     costs_.cluster().num_devices());
}

// What simulating it gives; nothing once the work limit is reached.
std::optional<FitSearch::Outcome> FitSearch::evaluate(const Assignment& assignment,
                                                      const Sequence& sequence) {
  work_left_ -= replay_cost(costs_.graph());
  if (work_left_ < 0) return std::nullopt;
  trace_ = simulator_.trace(placed_by(assignment, sequence), {.cancel = options_.cancel});
  return Outcome{total_excess(trace_, costs_.cluster()), trace_.schedule.makespan};
}

std::optional<PlacedGraph> FitSearch::repair(const PlacedGraph& placed) {
  const OpGraph& graph = costs_.graph();
  work_left_ = options_.simulated_ops;
  Assignment assignment(units_.size(), DeviceId(0));
  for (const UnitId unit : units_.keys())
    assignment[unit] = placed.device[units_[unit].ops.front()];
  const Trace trace = simulator_.trace(placed, {.cancel = options_.cancel});
  for (const Sequence& sequence :
       {by_start(trace.schedule, graph),
        Sequence(graph.topological_order().begin(), graph.topological_order().end()),
        depth_first_sequence(graph)})
    if (std::optional<PlacedGraph> found = improve(assignment, sequence)) return found;
  return std::nullopt;
}

std::optional<PlacedGraph> FitSearch::pack() {
  work_left_ = options_.simulated_ops;
  for (const Sequence& sequence : sequences()) {
    const auto [forwards, backwards] = cuts(sequence);
    for (const Assignment& start : {forwards, backwards, frugal(sequence), largest_first()})
      if (std::optional<PlacedGraph> found = improve(start, sequence)) return found;
  }
  return std::nullopt;
}

std::optional<Bytes> FitSearch::peak_of_cuts() {
  work_left_ = options_.simulated_ops;
  std::optional<Bytes> least;
  for (const Sequence& sequence : sequences())
    for (const Assignment& cut : cuts(sequence)) {
      if (!evaluate(cut, sequence).has_value()) return least;
      Bytes highest;
      for (const DeviceTrace& device : trace_.devices) highest = std::max(highest, device.peak);
      if (!least.has_value() || highest < *least) least = highest;
    }
  return least;
}

// Steepest descent on (excess, makespan) until nothing is over or no neighbour is better.
std::optional<PlacedGraph> FitSearch::improve(Assignment assignment, const Sequence& sequence) {
  std::optional<Outcome> now = evaluate(assignment, sequence);
  while (now.has_value() && now->over > Bytes(0)) {
    std::optional<std::pair<Outcome, Assignment>> best;
    for (Assignment& next : neighbours(assignment, sequence)) {
      const std::optional<Outcome> outcome = evaluate(next, sequence);
      if (!outcome.has_value()) break;  // the end, unless one that fits is among them
      if (!best.has_value() || *outcome < best->first) best.emplace(*outcome, std::move(next));
    }
    if (!best.has_value() || best->first.over >= now->over) return std::nullopt;
    if (work_left_ < 0 && best->first.over > Bytes(0)) return std::nullopt;
    assignment = std::move(best->second);
    if (best->first.over == Bytes(0)) break;
    now = evaluate(assignment, sequence);  // brings trace_ to where we are
  }
  if (!now.has_value()) return std::nullopt;
  return placed_by(assignment, sequence);
}

// Ways to take enough off the device that runs over the most; reads trace_ of `assignment`.
std::vector<FitSearch::Assignment> FitSearch::neighbours(const Assignment& assignment,
                                                         const Sequence& sequence) const {
  const Cluster& cluster = costs_.cluster();
  const auto slack = [&](DeviceId device) {
    return cluster[device].capacity - trace_.devices[device].peak;
  };
  const auto devices = cluster.devices();
  const DeviceId worst = *std::min_element(
      devices.begin(), devices.end(), [&](DeviceId a, DeviceId b) { return slack(a) < slack(b); });
  const Bytes over = Bytes(0) - slack(worst);
  const IdVector<UnitId, Bytes> shares = shares_of_peak(costs_, units_, trace_, worst);

  std::vector<UnitId> movable;  // by first operator in the sequence
  IdVector<UnitId, char> seen(units_.size());
  for (const OpId op : sequence) {
    const UnitId unit = units_.of(op);
    if (seen[unit] == 0 && assignment[unit] == worst && units_[unit].devices.size() > 1)
      movable.push_back(unit);
    seen[unit] = 1;
  }
  std::vector<UnitId> by_share = movable;
  std::stable_sort(by_share.begin(), by_share.end(),
                   [&](UnitId a, UnitId b) { return shares[a] > shares[b]; });

  const auto may_go = [&](UnitId unit, DeviceId device) {
    const auto& allowed = units_[unit].devices;
    return std::find(allowed.begin(), allowed.end(), device) != allowed.end();
  };
  std::vector<Assignment> result;
  const auto move_until = [&](const std::vector<UnitId>& from, DeviceId target, Bytes amount) {
    Assignment next = assignment;
    Bytes moved;
    for (const UnitId unit : from) {
      if (moved >= amount) break;
      if (shares[unit] == Bytes(0) || !may_go(unit, target)) continue;
      next[unit] = target;
      moved += shares[unit];
    }
    if (moved > Bytes(0)) result.push_back(std::move(next));
  };
  std::vector<UnitId> backwards(movable.rbegin(), movable.rend());
  for (const DeviceId target : devices) {
    if (target == worst) continue;
    for (const Bytes amount : {over, std::max(Bytes(1), std::min(over, slack(target)))}) {
      move_until(movable, target, amount);
      move_until(backwards, target, amount);
      move_until(by_share, target, amount);
    }
    // The smallest unit that is enough by itself.
    const auto enough = std::find_if(by_share.rbegin(), by_share.rend(),
                                     [&](UnitId unit) { return shares[unit] >= over; });
    if (enough != by_share.rend()) move_until({*enough}, target, over);

    constexpr std::size_t kSmall = 24;  // small graphs: every move and every exchange
    if (units_.size() > kSmall) continue;
    for (const UnitId unit : movable) {
      if (shares[unit] == Bytes(0) || !may_go(unit, target)) continue;
      Assignment moved = assignment;
      moved[unit] = target;
      result.push_back(moved);
      for (const UnitId other : units_.keys()) {
        if (assignment[other] != target || !may_go(other, worst)) continue;
        Assignment exchanged = moved;
        exchanged[other] = worst;
        result.push_back(std::move(exchanged));
      }
    }
  }
  return result;
}

std::array<FitSearch::Sequence, 2> FitSearch::sequences() const {
  const OpGraph& graph = costs_.graph();
  return {depth_first_sequence(graph),
          Sequence(graph.topological_order().begin(), graph.topological_order().end())};
}

// Into segments for the devices in their order, and in the other one.
std::array<FitSearch::Assignment, 2> FitSearch::cuts(const Sequence& sequence) const {
  const std::vector<DeviceId> devices(costs_.cluster().devices().begin(),
                                      costs_.cluster().devices().end());
  return {segments(sequence, devices), segments(sequence, {devices.rbegin(), devices.rend()})};
}

// Cuts the sequence into one segment per device, in the given device order, sized by capacity.
FitSearch::Assignment FitSearch::segments(const Sequence& sequence,
                                          const std::vector<DeviceId>& devices) const {
  const Cluster& cluster = costs_.cluster();
  const OpGraph& graph = costs_.graph();
  const auto weight = [&](OpId op) {
    return static_cast<double>((graph[op].permanent + graph.output_bytes(op)).count());
  };
  double total = 0, capacity = 0;
  for (const OpId op : sequence) total += weight(op);
  for (const DeviceId device : devices)
    capacity += static_cast<double>(cluster[device].capacity.count());

  Assignment assignment(units_.size(), devices.front());
  IdVector<UnitId, char> seen(units_.size());
  std::size_t at = 0;
  double filled = 0,
         share = static_cast<double>(cluster[devices[0]].capacity.count()) / capacity * total;
  for (const OpId op : sequence) {
    filled += weight(op);
    while (filled > share && at + 1 < devices.size())
      share += static_cast<double>(cluster[devices[++at]].capacity.count()) / capacity * total;
    const UnitId unit = units_.of(op);
    if (std::exchange(seen[unit], 1) != 0) continue;
    const auto& allowed = units_[unit].devices;
    const bool may = std::find(allowed.begin(), allowed.end(), devices[at]) != allowed.end();
    assignment[unit] = may ? devices[at] : allowed.front();
  }
  return assignment;
}

// Units by falling need, each to the device that then has the most room.
FitSearch::Assignment FitSearch::largest_first() const {
  std::vector<UnitId> by_need(units_.keys().begin(), units_.keys().end());
  std::stable_sort(by_need.begin(), by_need.end(),
                   [&](UnitId a, UnitId b) { return units_[a].need > units_[b].need; });
  IdVector<DeviceId, Bytes> left;
  for (const DeviceId device : costs_.cluster().devices())
    left.push_back(costs_.cluster()[device].capacity);
  Assignment assignment(units_.size(), DeviceId(0));
  for (const UnitId unit : by_need) {
    const auto& allowed = units_[unit].devices;
    assignment[unit] = *std::max_element(allowed.begin(), allowed.end(),
                                         [&](DeviceId a, DeviceId b) { return left[a] < left[b]; });
    left[assignment[unit]] -= units_[unit].permanent;
  }
  return assignment;
}

// Along the sequence, stays on the current device while the permanent memory there has room.
FitSearch::Assignment FitSearch::frugal(const Sequence& sequence) const {
  IdVector<DeviceId, Bytes> left;
  for (const DeviceId device : costs_.cluster().devices())
    left.push_back(costs_.cluster()[device].capacity);
  Assignment assignment(units_.size(), DeviceId(0));
  IdVector<UnitId, char> seen(units_.size());
  std::optional<DeviceId> current;
  for (const OpId op : sequence) {
    const UnitId unit = units_.of(op);
    if (std::exchange(seen[unit], 1) != 0) continue;
    const auto& allowed = units_[unit].devices;
    const auto has_room = [&](DeviceId device) { return left[device] >= units_[unit].need; };
    if (!current.has_value() || !has_room(*current) ||
        std::find(allowed.begin(), allowed.end(), *current) == allowed.end()) {
      const auto first = std::find_if(allowed.begin(), allowed.end(), has_room);
      current = first != allowed.end()
                    ? *first
                    : *std::max_element(allowed.begin(), allowed.end(),
                                        [&](DeviceId a, DeviceId b) { return left[a] < left[b]; });
    }
    assignment[unit] = *current;
    left[*current] -= units_[unit].permanent;
  }
  return assignment;
}

}  // namespace baechi
