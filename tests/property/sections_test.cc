// SPDX-License-Identifier: Apache-2.0
// The bounds of sections and memory runs against exact optima, and every distance that the former
// claims against plans.
#include "baechi/bounds/sections.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "baechi/base/random.h"
#include "baechi/bounds/cut.h"
#include "baechi/bounds/lower_bounds.h"
#include "baechi/graph/op_graph_builder.h"
#include "baechi/simulate/execution_simulator.h"
#include "effort.h"
#include "unit/brute_force.h"
#include "unit/graphs.h"

namespace baechi {
namespace {

using testing::effort;

struct Series {  // what random_series may draw
  std::size_t max_ops = 7, max_width = 3, max_length = 2;
  std::int64_t max_time = 20, max_bytes = 8;
  double group_chance = 0.0, pin_chance = 0.0, cpu_chance = 0.0, skip_chance = 0.0;
  std::int64_t max_permanent = 0;
};

// Forks and joins, one after the other; branches are chains. Some edges skip ahead.
//
//       +-> . -> . -+      +-> . --+
//   . --+-> . ------+-> . -+-> . --+-> . ...
//       +-> . -> . -+
class RandomSeries {
 public:
  RandomSeries(std::uint64_t seed, const Series& limits)
      : limits_(limits), random_(seed), builder_("series " + std::to_string(seed)) {}

  OpGraph build() {
    OpId spine = add({});
    while (count_ < limits_.max_ops) {
      std::vector<OpId> ends;
      for (std::size_t i = 0, width = 1 + random_.below(limits_.max_width); i < width; ++i) {
        OpId end = spine;
        for (std::size_t j = 0, length = 1 + random_.below(limits_.max_length); j < length; ++j)
          if (count_ + 1 < limits_.max_ops) end = add({end});
        if (end != spine) ends.push_back(end);
      }
      spine = add(ends.empty() ? std::vector<OpId>{spine} : ends);
    }
    return std::move(builder_).build();
  }

 private:
  OpId add(std::vector<OpId> parents) {
    const OpId op = builder_.add_operator(
        {.name = "op" + std::to_string(count_), .permanent = bytes(limits_.max_permanent)});
    const Time time(random_.between(0, limits_.max_time));
    builder_.set_time(op, "gpu", time);
    if (random_.chance(limits_.cpu_chance)) builder_.set_time(op, "cpu", time * 3);
    if (random_.chance(limits_.pin_chance)) builder_.set_pin(op, "gpu:0");
    if (random_.chance(limits_.group_chance))
      builder_.add_to_group(op, "group" + std::to_string(random_.below(2)));
    builder_.add_output(op, bytes(limits_.max_bytes));
    if (random_.chance(0.3)) builder_.add_output(op, bytes(limits_.max_bytes));
    if (count_ > 0 && random_.chance(limits_.skip_chance))
      parents.push_back(OpId(random_.below(count_)));
    std::sort(parents.begin(), parents.end());
    parents.erase(std::unique(parents.begin(), parents.end()), parents.end());
    for (const OpId parent : parents) {
      if (random_.chance(0.1)) {
        builder_.add_control_edge(parent, op);
        continue;
      }
      const std::size_t port = builder_.output(parent, 1).has_value() ? random_.below(2) : 0;
      builder_.connect(*builder_.output(parent, port), op);
    }
    ++count_;
    return op;
  }
  Bytes bytes(std::int64_t most) { return Bytes(random_.between(0, most)); }

  const Series limits_;
  Random random_;
  OpGraphBuilder builder_;
  std::size_t count_ = 0;
};

Series limits_of(std::uint64_t seed) {
  Random random(seed ^ 0x5ec);
  Series limits;
  limits.max_ops = 4 + random.below(4);
  limits.max_bytes = random.chance(0.3) ? 60 : 8;
  limits.max_time = random.chance(0.3) ? 100 : 20;
  if (random.chance(0.2)) limits.group_chance = 0.4;
  if (random.chance(0.2)) limits.pin_chance = 0.2;
  if (random.chance(0.4)) limits.cpu_chance = 0.8;
  if (random.chance(0.3)) limits.skip_chance = 0.4;
  if (random.chance(0.3)) limits.max_permanent = 40;
  return limits;
}

Cluster cluster_of(std::uint64_t seed, std::int64_t capacity) {
  ClusterSpec spec = testing::random_cluster(seed, Bytes(capacity)).spec();
  if (spec.devices.size() > 3) spec.devices.resize(3);
  if (seed % 2 == 0) {
    for (Device& device : spec.devices) {
      device.kind = "gpu";
      device.speed = kFullSpeed;
      device.capacity = Bytes(capacity);
    }
    spec.links.erase(spec.links.begin() + 1, spec.links.end());
  }
  return Cluster(std::move(spec));
}

TEST_CASE("sections: never above the exact optimum of forks and joins, and often the best bound") {
  std::size_t solved = 0, told = 0, best = 0, met = 0;
  for (std::uint64_t seed = 0; seed < effort(4000); ++seed) {
    CAPTURE(seed);
    const Series limits = limits_of(seed);
    const OpGraph graph = RandomSeries(seed, limits).build();
    const Cluster cluster = cluster_of(seed, limits.max_permanent > 0 ? 150 : 1'000'000);
    const auto optimum = testing::optimal_makespan(graph, cluster);
    if (!optimum.has_value()) continue;
    ++solved;
    const std::vector<NamedBound> found = lower_bounds(CostModel(graph, cluster));
    REQUIRE_FALSE(found.empty());
    for (const NamedBound& bound : found) {
      CAPTURE(bound.name);
      REQUIRE(bound.value.count() <= optimum->makespan.count());
      if (bound.name == "sections") ++told;
    }
    if (found.front().name == "sections") {
      ++best;
      if (found.front().value == optimum->makespan) ++met;
    }
  }
  CHECK(solved > effort(3000));
  CHECK(told * 20 > solved);
  CHECK(best * 40 > solved);
  CHECK(met * 4 > best);
}

TEST_CASE("memory runs: never above the exact optimum of what fits no device, and often the best") {
  std::size_t solved = 0, best = 0, met = 0;
  for (std::uint64_t seed = 0; seed < effort(4000); ++seed) {
    CAPTURE(seed);
    Series limits = limits_of(seed);
    limits.max_permanent = 60;
    const OpGraph graph = RandomSeries(seed, limits).build();
    std::int64_t held = 0;
    for (const OpId op : graph.ops()) held += graph[op].permanent.count();
    const Cluster cluster = cluster_of(seed, 40 + held * 2 / 3);
    const auto optimum = testing::optimal_makespan(graph, cluster);
    if (!optimum.has_value()) continue;
    ++solved;
    const std::vector<NamedBound> found = lower_bounds(CostModel(graph, cluster));
    REQUIRE_FALSE(found.empty());
    for (const NamedBound& bound : found) {
      CAPTURE(bound.name);
      REQUIRE(bound.value.count() <= optimum->makespan.count());
    }
    if (found.front().name == "memory runs") {
      ++best;
      if (found.front().value == optimum->makespan) ++met;
    }
  }
  CHECK(solved > effort(1500));
  CHECK(best * 50 > solved);
  CHECK(met * 4 > best);
}

struct Cuts {  // the cut bound, with heads and tails that keep the distances in both cases
  bounds::Ns with = 0, without = 0;  // distances in its rounds
};

Cuts cuts_of(const CostModel& costs) {
  const auto relaxed = bounds::relax(costs);
  if (!relaxed.has_value()) return {};
  UnionFind forced = bounds::forced_together(*relaxed);
  const bounds::Components together = bounds::number(*relaxed, forced);
  const bounds::Lumps lumps = bounds::lumps(*relaxed, together.of, together.count);
  if (!bounds::may_pack(*relaxed, lumps, bounds::kNever)) return {};
  const std::vector<bounds::Distance> distances =
      bounds::sections(*relaxed, together, bounds::balance(*relaxed, lumps));
  const bounds::HeadsTails ends = bounds::star(*relaxed, together.of, distances);
  const bounds::Ns known = bounds::longest(*relaxed, ends);
  return {bounds::cut(*relaxed, ends, known, distances), bounds::cut(*relaxed, ends, known, {})};
}

TEST_CASE(
    "cut: with the distances of sections it is never above the optimum, and higher for some") {
  std::size_t solved = 0, higher = 0;
  for (std::uint64_t seed = 0; seed < effort(4000); ++seed) {
    CAPTURE(seed);
    Series limits = limits_of(seed);
    limits.max_bytes = 60;  // transfers that are worth avoiding
    limits.max_permanent = 0;
    const OpGraph graph = RandomSeries(seed, limits).build();
    const Cluster cluster = cluster_of(seed, 1'000'000);
    const auto optimum = testing::optimal_makespan(graph, cluster);
    if (!optimum.has_value()) continue;
    ++solved;
    const Cuts cuts = cuts_of(CostModel(graph, cluster));
    REQUIRE(cuts.with <= optimum->makespan.count());
    higher += cuts.with > cuts.without ? 1 : 0;
  }
  CHECK(solved > effort(3000));
  CHECK(higher > 0);
}

// Any placement that keeps groups and pins, in any order.
PlacedGraph random_plan(const CostModel& costs, const IdVector<OpId, bounds::UnitId>& unit,
                        Random& random) {
  const OpGraph& graph = costs.graph();
  const std::size_t num_devices = costs.cluster().num_devices();
  std::vector<DeviceId> of_unit;
  const std::size_t favorite = random.below(num_devices);
  for (std::size_t i = 0; i < graph.num_ops(); ++i)  // at most one unit per operator
    of_unit.push_back(DeviceId(random.chance(0.4) ? favorite : random.below(num_devices)));
  PlacedGraph plan{Placement(graph.num_ops(), DeviceId(0)), DeviceOrder(num_devices)};
  IdVector<OpId, std::size_t> waits_for(graph.num_ops(), 0);
  std::vector<OpId> ready;
  for (const OpId op : graph.ops()) {
    plan.device[op] = of_unit[unit[op].index()];
    waits_for[op] = graph.in_edges(op).size();
    if (waits_for[op] == 0) ready.push_back(op);
  }
  while (!ready.empty()) {
    std::swap(ready[random.below(ready.size())], ready.back());
    const OpId op = ready.back();
    ready.pop_back();
    (*plan.order)[plan.device[op]].push_back(op);
    for (const Edge& edge : graph.out_edges(op))
      if (--waits_for[edge.to] == 0) ready.push_back(edge.to);
  }
  return plan;
}

TEST_CASE("sections: every plan keeps every distance, whatever its placement and its order") {
  std::size_t kept = 0, tight = 0;
  for (std::uint64_t seed = 0; seed < effort(2000); ++seed) {
    CAPTURE(seed);
    Series limits = limits_of(seed);
    limits.max_ops = seed % 2 == 0 ? 6 : 30;
    limits.max_width = 1 + seed % 5;
    limits.cpu_chance = 1.0;  // every device can run everything, so that any placement will do
    limits.pin_chance = 0.0;
    limits.max_permanent = 0;
    const OpGraph graph = RandomSeries(seed, limits).build();
    const Cluster cluster = testing::random_cluster(seed);
    const CostModel costs(graph, cluster);
    const auto relaxed = bounds::relax(costs);
    REQUIRE(relaxed.has_value());
    UnionFind forced = bounds::forced_together(*relaxed);
    const bounds::Components together = bounds::number(*relaxed, forced);
    const bounds::Lumps lumps = bounds::lumps(*relaxed, together.of, together.count);
    const std::vector<bounds::Distance> distances =
        bounds::sections(*relaxed, together, bounds::balance(*relaxed, lumps));
    Random random(seed);
    for (int plan = 0; plan < 20; ++plan) {
      const Schedule found = simulate(costs, random_plan(costs, together.of, random)).schedule;
      for (const bounds::Distance& distance : distances) {
        const auto passed =
            (found.slots[distance.to].start - found.slots[distance.from].end).count();
        CAPTURE(distance.from.value());
        CAPTURE(distance.to.value());
        REQUIRE(passed >= distance.least);
        ++kept;
        if (passed == distance.least && distance.least > 0) ++tight;
      }
    }
  }
  CHECK(kept > effort(20'000));
  CHECK(tight > effort(200));
}

}  // namespace
}  // namespace baechi
