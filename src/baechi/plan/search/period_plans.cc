// SPDX-License-Identifier: Apache-2.0
#include "baechi/plan/search/period_plans.h"

#include <algorithm>
#include <cstddef>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "baechi/base/cancel.h"
#include "baechi/base/parallel.h"
#include "baechi/graph/recosted.h"
#include "baechi/plan/search/layouts.h"
#include "baechi/plan/search/restarts.h"
#include "baechi/simulate/simulator.h"

namespace baechi {
namespace {

constexpr std::size_t kMostOps = 2'000;  // of the periods that are planned at once

using Pattern = std::vector<std::optional<DeviceId>>;  // by slot

// Some periods of a graph as a graph of their own, on devices that have as much room as is theirs.
class Window {
 public:
  // So many whole periods from the middle of the repetition.
  Window(const CostModel& costs, const Repetition& repetition, std::size_t count)
      : whole_(costs),
        repetition_(repetition),
        first_((repetition.whole.size() - count) / 2),
        count_(count),
        ops_(members()),
        graph_(subgraph(costs.graph(), ops_)),
        cluster_(room()),
        costs_(graph_, cluster_) {}

  const CostModel& costs() const { return costs_; }
  const Repetition& repetition() const { return repetition_; }

  // What a placement of the window says of each of its periods.
  std::vector<Pattern> patterns(const Placement& placement) const {
    std::vector<Pattern> patterns(count_, Pattern(repetition_.slots));
    for (const OpId op : graph_.ops()) {
      const auto& at = repetition_.at[ops_[op]];
      if (at.has_value() && inside(*at)) patterns[index(*at)][at->slot] = placement[op];
    }
    return patterns;
  }

 private:
  bool inside(const Repetition::Position& at) const {
    const auto begin = repetition_.whole.begin() + static_cast<std::ptrdiff_t>(first_);
    return std::binary_search(begin, begin + static_cast<std::ptrdiff_t>(count_), at.period);
  }
  std::size_t index(const Repetition::Position& at) const {
    const auto begin = repetition_.whole.begin() + static_cast<std::ptrdiff_t>(first_);
    return static_cast<std::size_t>(std::lower_bound(begin, repetition_.whole.end(), at.period) -
                                    begin);
  }

  // With what many periods read: weights of a recurrent layer, and what is made of them alone.
  IdVector<OpId, OpId> members() const {
    const OpGraph& graph = whole_.graph();
    IdVector<OpId, char> needed(graph.num_ops());
    for (const OpId op : graph.ops()) {
      const auto& at = repetition_.at[op];
      if (!at.has_value() || !inside(*at)) continue;
      needed[op] = 1;
      for (const Edge& edge : graph.in_edges(op)) {
        if (!of_sources(edge.from)) continue;
        needed[edge.from] = 1;
        for (const Edge& source : graph.in_edges(edge.from)) needed[source.from] = 1;
      }
    }
    IdVector<OpId, OpId> members;
    for (const OpId op : graph.ops())
      if (needed[op] != 0) members.push_back(op);
    return members;
  }

  bool of_sources(OpId op) const {
    return std::ranges::all_of(whole_.graph().in_edges(op), [&](const Edge& edge) {
      return whole_.graph().in_edges(edge.from).empty();
    });
  }

  // Of each device the window has the part that it has of all that must be held, and room for any
  // of its operators.
  Cluster room() const {
    double window = 0, all = 0;
    for (const OpId op : whole_.graph().ops()) all += held(whole_.graph(), op);
    for (const OpId op : graph_.ops()) window += held(graph_, op);
    const double of_ops =
        static_cast<double>(graph_.num_ops()) / static_cast<double>(whole_.graph().num_ops());
    const double part = all > 0 ? std::max(window / all, of_ops) : 1;
    ClusterSpec spec = whole_.cluster().spec();
    if (part >= 1) return Cluster(std::move(spec));
    const Bytes most = largest_need();
    for (Device& device : spec.devices) {
      const double share = static_cast<double>(device.capacity.count()) * part;
      device.capacity =
          std::min(device.capacity, std::max(most, Bytes(static_cast<std::int64_t>(share))));
    }
    return Cluster(std::move(spec));
  }

  // Of an operator while it runs.
  Bytes largest_need() const {
    Bytes most(1);
    for (const OpId op : graph_.ops()) {
      Bytes need = graph_[op].permanent + graph_[op].temporary + graph_.output_bytes(op);
      for (const Edge& edge : graph_.in_edges(op))
        if (edge.tensor.has_value()) need += graph_.size(*edge.tensor);
      most = std::max(most, need);
    }
    return most;
  }

  static double held(const OpGraph& graph, OpId op) {
    Bytes bytes = graph[op].permanent;
    if (graph.retains_outputs(op)) bytes += graph.output_bytes(op);
    return static_cast<double>(bytes.count());
  }

  const CostModel& whole_;
  const Repetition& repetition_;
  const std::size_t first_, count_;  // of the whole periods
  const IdVector<OpId, OpId> ops_;   // of the window, in the whole graph
  const OpGraph graph_;
  const Cluster cluster_;
  const CostModel costs_;
};

class LayOut {
 public:
  LayOut(const CostModel& costs, const Units& units) : costs_(costs), units_(units) {}

  // Every period gets the next of the patterns, those that follow a round begin anew.
  Placement over(const Placement& base, const Repetition& repetition,
                 std::span<const Pattern> patterns) const {
    IdVector<OpId, std::optional<DeviceId>> device(costs_.graph().num_ops());
    for (const OpId op : costs_.graph().ops())
      if (const auto& at = repetition.at[op])
        device[op] = patterns[at->period % patterns.size()][at->slot];
    follow_neighbours(device);
    return by_units(base, device);
  }

 private:
  // What is in no period goes where the most of its bytes come from, or go.
  void follow_neighbours(IdVector<OpId, std::optional<DeviceId>>& device) const {
    const OpGraph& graph = costs_.graph();
    const auto follow = [&](OpId op, std::span<const Edge> edges, auto end) {
      if (device[op].has_value()) return;
      Bytes most(-1);
      for (const Edge& edge : edges) {
        if (!edge.tensor.has_value() || !device[edge.*end].has_value() ||
            graph.size(*edge.tensor) <= most)
          continue;
        most = graph.size(*edge.tensor);
        device[op] = device[edge.*end];
      }
    };
    const auto order = graph.topological_order();
    for (const OpId op : order) follow(op, graph.in_edges(op), &Edge::from);
    for (auto op = order.rbegin(); op != order.rend(); ++op)
      follow(*op, graph.out_edges(*op), &Edge::to);
  }

  // All of a unit goes where most of it is to go.
  Placement by_units(const Placement& base,
                     const IdVector<OpId, std::optional<DeviceId>>& device) const {
    Placement result = base;
    IdVector<DeviceId, std::size_t> votes;
    for (const UnitId unit : units_.keys()) {
      votes.assign(costs_.cluster().num_devices(), 0);
      for (const OpId op : units_[unit].ops)
        if (device[op].has_value()) ++votes[*device[op]];
      const DeviceId* chosen = nullptr;
      for (const DeviceId& candidate : units_[unit].devices)
        if (votes[candidate] > (chosen == nullptr ? 0 : votes[*chosen])) chosen = &candidate;
      if (chosen == nullptr) continue;
      for (const OpId op : units_[unit].ops) result[op] = *chosen;
    }
    return result;
  }

  const CostModel& costs_;
  const Units& units_;
};

// The request for a window.
PlanRequest for_window(const PeriodOptions& options, Budget budget) {
  PlanRequest request = options.request.within(budget);
  request.method = "auto";
  request.place.expert = nullptr;
  return request;
}

struct Planned {  // of a window
  bool asked = false;
  ShortestLayout shortest;
};

// One period for all, two in turn, or the whole window again and again.
std::vector<std::span<const Pattern>> rounds(const std::vector<Pattern>& patterns) {
  std::vector<std::span<const Pattern>> rounds;
  const std::span<const Pattern> all(patterns);
  for (std::size_t i = 0; i < all.size(); ++i) rounds.push_back(all.subspan(i, 1));
  for (std::size_t i = 0; i + 1 < all.size(); ++i) rounds.push_back(all.subspan(i, 2));
  if (all.size() > 2) rounds.push_back(all);
  return rounds;
}

// What planning the window gives, over all periods.
std::vector<Placement> laid_out(const LayOut& lay_out, const Window& window, const Placement& base,
                                Budget budget, const PeriodOptions& options) {
  std::vector<Placement> result;
  const std::optional<Placement> planned =
      options.place_window(window.costs(), for_window(options, budget));
  if (!planned.has_value()) return result;
  const std::vector<Pattern> patterns = window.patterns(*planned);
  for (const std::span<const Pattern> round : rounds(patterns))
    result.push_back(lay_out.over(base, window.repetition(), round));
  return result;
}

}  // namespace

PeriodPlans plans_by_period(const CostModel& costs, const Units& units,
                            const std::vector<Repetition>& repetitions, const PlacedGraph& base,
                            const PeriodOptions& options) {
  // Windows in periods, and what each may take. The first one tells whether there is a point in it:
  // far behind the base, neither more periods nor a search will make up for that.
  struct Periods {
    std::size_t count;
    double part;
  };
  constexpr Periods kTries[] = {{2, 0.06}, {2, 0.34}, {3, 0.3}, {4, 0.3}};
  constexpr double kHopeless = 1.1;
  const LayOut lay_out(costs, units);
  const auto limit = static_cast<double>(Simulator(costs).makespan(base).count()) * kHopeless;
  PeriodPlans result;
  Placement start = base.device;
  for (const Repetition& repetition : repetitions) {
    ShortestLayout shortest;
    const auto share = [&](const Periods& attempt) {
      return Budget(options.budget.seconds * attempt.part /
                    static_cast<double>(repetitions.size()));
    };
    // Windows say nothing to each other: threads share them out.
    const auto plan = [&](std::span<const Periods> attempts) {
      std::vector<Planned> planned(attempts.size());
      const PlanRequest& request = options.request;
      parallel_for(attempts.size(), request.threads, [&](std::size_t i) {
        if (options.must_stop()) return;
        planned[i].asked = true;
        planned[i].shortest =
            shortest_of(costs,
                        laid_out(lay_out, Window(costs, repetition, attempts[i].count), start,
                                 share(attempts[i]), options),
                        request);
      });
      for (std::size_t i = 0; i < attempts.size(); ++i) {
        if (planned[i].asked) result.spent.seconds += share(attempts[i]).seconds;
        shortest.add(planned[i].shortest);
      }
    };
    const std::span<const Periods> tries(kTries);
    const auto possible = static_cast<std::size_t>(
        std::ranges::find_if(tries,
                             [&](const Periods& attempt) {
                               return attempt.count * repetition.slots > kMostOps ||
                                      attempt.count >= repetition.whole.size();
                             }) -
        tries.begin());
    if (possible > 0) plan(tries.first(1));
    // Where the first window found no room, no other will.
    if (possible > 1 && shortest.of_all.has_value() &&
        static_cast<double>(shortest.of_all->makespan.count()) <= limit)
      plan(tries.first(possible).subspan(1));
    if (shortest.of_all.has_value() && !shortest.of_all->fits)
      if (Repaired mended =
              repaired(costs, units, shortest.of_all->placed, options.request.place.order);
          mended.placed.has_value())
        result.plans.push_back(*std::move(mended.placed));
    if (!shortest.fitting.has_value()) continue;
    start = shortest.fitting->placed.device;
    result.plans.push_back(std::move(shortest.fitting->placed));
  }
  return result;
}

}  // namespace baechi
