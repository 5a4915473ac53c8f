// SPDX-License-Identifier: Apache-2.0
#include "baechi/optimize/expansion.h"

#include <doctest/doctest.h>

#include "baechi/base/random.h"
#include "baechi/optimize/optimize.h"
#include "baechi/optimize/plan_order.h"
#include "baechi/simulate/execution_simulator.h"
#include "unit/graphs.h"
#include "unit/simulate/small_clusters.h"

namespace baechi {
namespace {

TEST_CASE("expansion: a plan expands to the members in their order, through two expansions") {
  // original 0 1 2 3 4 -> middle {3, 0} {1} {4, 2} -> small {1} {2, 0}
  const Expansion inner({OpId(3), OpId(0), OpId(1), OpId(4), OpId(2)}, {0, 2, 3, 5},
                        MemberOrder::kTogether);
  const Expansion outer({OpId(1), OpId(2), OpId(0)}, {0, 1, 3}, MemberOrder::kTogether);
  const Expansion both = outer.after(inner);
  CHECK(both == Expansion({OpId(1), OpId(4), OpId(2), OpId(3), OpId(0)}, {0, 1, 5},
                          MemberOrder::kTogether));

  PlacedGraph small{Placement{DeviceId(1), DeviceId(0)}, DeviceOrder{{OpId(1)}, {OpId(0)}}};
  const PlacedGraph placed = expand(both, small);
  CHECK(placed.device ==
        Placement{DeviceId(0), DeviceId(1), DeviceId(0), DeviceId(0), DeviceId(0)});
  REQUIRE(placed.order.has_value());
  CHECK((*placed.order)[DeviceId(0)] == std::vector{OpId(4), OpId(2), OpId(3), OpId(0)});
  CHECK((*placed.order)[DeviceId(1)] == std::vector{OpId(1)});

  small.order.reset();
  CHECK_FALSE(expand(both, small).order.has_value());
}

TEST_CASE("expansion: members that run apart leave the order open") {
  const Expansion apart({OpId(0), OpId(1)}, {0, 2}, MemberOrder::kApart);
  const PlacedGraph placed = expand(apart, {Placement{DeviceId(0)}, DeviceOrder{{OpId(0)}}});
  CHECK_FALSE(placed.order.has_value());
  CHECK(apart.after(Expansion::identity(2)).member_order() == MemberOrder::kApart);
  CHECK(Expansion::identity(1).after(apart).member_order() == MemberOrder::kApart);
}

// A random placement of the small graph that respects its groups, with the order of a random list
// schedule: some sequence of all operators, parents first.
PlacedGraph random_plan(const OpGraph& graph, std::size_t num_devices, Random& random) {
  PlacedGraph placed{Placement(graph.num_ops(), DeviceId(0)), std::nullopt};
  for (const OpId op : graph.ops()) {
    placed.device[op] = DeviceId(random.below(num_devices));
    if (graph[op].group.has_value())
      placed.device[op] = placed.device[graph.members(*graph[op].group).front()];
  }
  std::vector<std::size_t> left(graph.num_ops());
  std::vector<OpId> free, sequence;
  for (const OpId op : graph.ops())
    if ((left[op.index()] = graph.in_edges(op).size()) == 0) free.push_back(op);
  while (!free.empty()) {
    std::swap(free[random.below(free.size())], free.back());
    const OpId op = free.back();
    free.pop_back();
    sequence.push_back(op);
    for (const Edge& edge : graph.out_edges(op))
      if (--left[edge.to.index()] == 0) free.push_back(edge.to);
  }
  placed.order = device_order(sequence, placed.device, num_devices);
  return placed;
}

TEST_CASE("expansion: plans of optimised graphs run on the original without deadlock") {
  const OptimizeLevel levels[] = {OptimizeLevel::kNone,    OptimizeLevel::kColocate,
                                  OptimizeLevel::kCoplace, OptimizeLevel::kFuse,
                                  OptimizeLevel::kForward, OptimizeLevel::kAll};
  std::size_t shrunk = 0, forward_only = 0;
  for (std::uint64_t seed = 1; seed <= 1200; ++seed) {
    CAPTURE(seed);
    Random random(seed);
    const OpGraph graph = testing::random_dag(
        seed, {.max_ops = 20, .edge_chance = 0.2, .group_chance = 0.5, .backward_chance = 0.4});
    const Cluster cluster = testing::equal_devices(3, Bytes(1'000), Time(5));
    const CostModel costs(graph, cluster);
    OptimizeOptions options{.level = levels[seed % 6]};
    if (random.chance(0.5)) options.coplacement.rule = CoplacementRule::kNeighbours;
    options.coplacement.work_share = 0.1 + 3 * random.unit();
    options.fusion.grain = 20 * random.unit();
    const Optimized optimized = optimize(costs, options);
    const PlacedGraph small = random_plan(optimized.graph, 3, random);
    const PlacedGraph placed = expand(optimized.expansion, small);
    shrunk += optimized.graph.num_ops() < graph.num_ops();
    forward_only += optimized.expansion.member_order() == MemberOrder::kApart;

    const Trace trace = simulate(costs, placed);
    CHECK(trace.schedule.slots.size() == graph.num_ops());
    for (const OpId meta : optimized.graph.ops())
      for (const OpId op : optimized.expansion.members(meta))
        CHECK(placed.device[op] == small.device[meta]);
    for (const GroupId group : graph.groups())
      for (const OpId op : graph.members(group))
        CHECK(placed.device[op] == placed.device[graph.members(group).front()]);
  }
  CHECK(shrunk > 300);
  CHECK(forward_only > 100);
}

}  // namespace
}  // namespace baechi
