// SPDX-License-Identifier: Apache-2.0
#include "baechi/plan/fit/fit_search.h"

#include <algorithm>
#include <functional>
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

// Roughly what each unit adds to the memory of its device at the peak there.
IdVector<UnitId, Bytes> shares_of_peaks(const CostModel& costs, const Units& units,
                                        const Trace& trace) {
  const OpGraph& graph = costs.graph();
  const auto& slots = trace.schedule.slots;
  IdVector<UnitId, Bytes> shares(units.size());
  for (const OpId op : graph.ops()) {
    const DeviceId device = slots[op].device;
    const Time peak = trace.devices[device].peak_at;
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

// Descent on (excess, makespan) until nothing is over, no neighbour is better, or it gets too slow.
std::optional<PlacedGraph> FitSearch::improve(Assignment assignment, const Sequence& sequence) {
  constexpr std::int64_t kMostSteps = 20;  // of the size of this one, until nothing is over
  std::optional<Outcome> now = evaluate(assignment, sequence);
  while (now.has_value() && now->over > Bytes(0)) {
    std::optional<std::pair<Outcome, Assignment>> best;
    const auto look_at = [&](std::vector<Assignment> nexts) {
      for (Assignment& next : nexts) {
        const std::optional<Outcome> outcome = evaluate(next, sequence);
        if (!outcome.has_value()) return;  // the end, unless one that fits is among them
        if (!best.has_value() || *outcome < best->first) best.emplace(*outcome, std::move(next));
      }
    };
    const auto is_far = [&](std::int64_t steps) {
      return !best.has_value() ||
             (now->over - best->first.over).count() < now->over.count() / steps;
    };
    if (is_large()) {
      Trace here = trace_;
      look_at(relieved(assignment, sequence));
      trace_ = std::move(here);
    }
    constexpr std::int64_t kGoodStep = 8;
    if (!is_large() || is_far(kGoodStep)) look_at(neighbours(assignment, sequence));
    if (!best.has_value() || best->first.over >= now->over) return std::nullopt;
    if (best->first.over > Bytes(0) && (work_left_ < 0 || (is_large() && is_far(kMostSteps))))
      return std::nullopt;
    assignment = std::move(best->second);
    if (best->first.over == Bytes(0)) break;
    now = evaluate(assignment, sequence);  // brings trace_ to where we are
  }
  if (!now.has_value()) return std::nullopt;
  return placed_by(assignment, sequence);
}

// Ways to take enough off all devices that run over, as long as others have room; reads trace_.
std::vector<FitSearch::Assignment> FitSearch::relieved(const Assignment& assignment,
                                                       const Sequence& sequence) const {
  const IdVector<UnitId, Bytes> shares = shares_of_peaks(costs_, units_, trace_);
  IdVector<DeviceId, Bytes> slack;
  for (const DeviceId device : costs_.cluster().devices())
    slack.push_back(costs_.cluster()[device].capacity - trace_.devices[device].peak);
  std::vector<UnitId> forwards;  // by first operator in the sequence
  IdVector<UnitId, char> seen(units_.size());
  for (const OpId op : sequence)
    if (const UnitId unit = units_.of(op); std::exchange(seen[unit], 1) == 0)
      forwards.push_back(unit);
  std::vector<UnitId> by_share = forwards;
  std::ranges::stable_sort(by_share, std::greater(), [&](UnitId unit) { return shares[unit]; });
  const auto moved = [&](const std::vector<UnitId>& from) {
    Assignment next = assignment;
    IdVector<DeviceId, Bytes> left = slack;
    for (const UnitId unit : from) {
      const DeviceId here = assignment[unit];
      if (left[here] >= Bytes(0) || shares[unit] == Bytes(0)) continue;
      const DeviceId there = *std::ranges::max_element(
          units_[unit].devices, {}, [&](DeviceId device) { return left[device]; });
      if (left[there] < std::max(shares[unit], units_[unit].permanent)) continue;
      next[unit] = there;
      left[here] += shares[unit];
      left[there] -= shares[unit];
    }
    return next;
  };
  const std::vector<UnitId> backwards(forwards.rbegin(), forwards.rend());
  return {moved(forwards), moved(backwards), moved(by_share)};
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
  const IdVector<UnitId, Bytes> shares = shares_of_peaks(costs_, units_, trace_);

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
  std::vector<DeviceId> targets(devices.begin(), devices.end());
  if (is_large()) {  // those with the most room
    std::ranges::stable_sort(targets, std::greater(), slack);
    targets.erase(targets.begin() + kFewDevices, targets.end());
  }
  for (const DeviceId target : targets) {
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

}  // namespace baechi
