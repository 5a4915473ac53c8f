// SPDX-License-Identifier: Apache-2.0
// The hub bound against exact optima, on graphs that have a hub and on those that have none.
#include "baechi/bounds/hub.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "baechi/base/random.h"
#include "baechi/bounds/components.h"
#include "baechi/bounds/heads_tails.h"
#include "baechi/bounds/lower_bounds.h"
#include "baechi/graph/op_graph_builder.h"
#include "baechi/simulate/execution_simulator.h"
#include "effort.h"
#include "unit/brute_force.h"
#include "unit/graphs.h"
#include "unit/regimes.h"
#include "unit/simulate/small_clusters.h"

namespace baechi {
namespace {

using testing::effort;

std::optional<Time> hub_bound(const OpGraph& graph, const Cluster& cluster) {
  const auto relaxed = bounds::relax(CostModel(graph, cluster));
  if (!relaxed.has_value()) return std::nullopt;
  UnionFind forced = bounds::forced_together(*relaxed);
  const bounds::Components together = bounds::number(*relaxed, forced);
  return Time(bounds::hub(*relaxed, bounds::star(*relaxed, together.of), together, 0));
}

CommunicationMode mode_of(std::uint64_t seed) {
  return seed % 3 == 0 ? CommunicationMode::kDuplex : CommunicationMode::kSequential;
}

struct HubShape {
  std::int64_t max_time = 20, max_bytes = 60;
  double group_chance = 0.5, cpu_chance = 0.3, reader_chance = 0.3, early_chance = 0.2,
         barrier_chance = 0.5;
};

//   . --+            +-> . --+
//   . --+-> barrier -+-> . --+-> hub
//                    +-> . --+
// Those before are often in a group with those after, which may read each other.
OpGraph random_hub(std::uint64_t seed, const HubShape& shape) {
  Random random(seed);
  OpGraphBuilder builder("hub " + std::to_string(seed));
  std::size_t count = 0;
  const auto add = [&] {
    const OpId op = builder.add_operator({.name = "op" + std::to_string(count++)});
    const Time time(random.between(0, shape.max_time));
    builder.set_time(op, "gpu", time);
    if (random.chance(shape.cpu_chance)) builder.set_time(op, "cpu", time * 3);
    if (random.chance(shape.group_chance))
      builder.add_to_group(op, "group" + std::to_string(random.below(3)));
    builder.add_output(op, Bytes(random.between(0, shape.max_bytes)));
    return op;
  };
  std::vector<OpId> early(random.below(3), OpId(0));
  for (OpId& op : early) op = add();
  if (early.size() > 1 && random.chance(0.5))
    builder.connect(*builder.output(early[0], 0), early[1]);
  const OpId barrier = add();
  const bool with_barrier = random.chance(shape.barrier_chance);
  if (with_barrier) builder.add_to_group(barrier, "hub");
  for (const OpId op : early) builder.connect(*builder.output(op, 0), barrier);
  std::vector<OpId> late(2 + random.below(2), OpId(0));
  for (OpId& op : late) op = add();
  for (std::size_t i = 0; i < late.size(); ++i) {
    builder.connect(*builder.output(barrier, 0), late[i]);
    for (std::size_t j = 0; j < i; ++j)
      if (random.chance(shape.reader_chance)) builder.connect(*builder.output(late[j], 0), late[i]);
    for (const OpId op : early)
      if (random.chance(shape.early_chance)) builder.connect(*builder.output(op, 0), late[i]);
  }
  const OpId hub = add();
  if (with_barrier) builder.add_to_group(hub, "hub");
  for (const OpId op : late) builder.connect(*builder.output(op, 0), hub);
  return std::move(builder).build();
}

OpId add_op(OpGraphBuilder& builder, const std::string& name, std::int64_t time, std::int64_t bytes,
            const std::string& group = "") {
  const OpId op = testing::timed(builder, {.name = name}, Time(time));
  builder.add_output(op, Bytes(bytes));
  if (!group.empty()) builder.add_to_group(op, group);
  return op;
}

Cluster two_devices(CommunicationMode mode) {
  return testing::byte_per_ns(2, mode, Time(0), Bytes(10'000));
}

// A step in which these are on gpu:1 and all others on gpu:0, each device in the order of ids.
Time step_with(const OpGraph& graph, const Cluster& cluster, const std::vector<OpId>& elsewhere) {
  PlacedGraph plan;
  plan.order = DeviceOrder(2);
  for (const OpId op : graph.ops()) {
    plan.device.push_back(DeviceId(std::ranges::count(elsewhere, op) > 0 ? 1 : 0));
    (*plan.order)[plan.device[op]].push_back(op);
  }
  return simulate(CostModel(graph, cluster), plan).schedule.makespan;
}

// Each pair of a group shares a device with the join, since one tensor of 2000 is more than all:
// three times 10, three times 10 and 10.
TEST_CASE("hub: who must share a device with it works there, before the barrier and after") {
  OpGraphBuilder builder("pairs");
  const OpId barrier = add_op(builder, "barrier", 0, 0), hub = add_op(builder, "hub", 10, 0);
  for (const char* const pair : {"a", "b", "c"}) {
    const OpId before = add_op(builder, std::string("before ") + pair, 10, 0, pair);
    const OpId after = add_op(builder, std::string("after ") + pair, 10, 2000, pair);
    builder.connect(*builder.output(before, 0), barrier);
    builder.connect(*builder.output(barrier, 0), after);
    builder.connect(*builder.output(after, 0), hub);
  }
  const OpGraph graph = std::move(builder).build();
  const Cluster sequential = two_devices(CommunicationMode::kSequential);
  CHECK(testing::optimal_makespan(graph, sequential)->makespan == Time(70));
  CHECK(hub_bound(graph, sequential) == Time(70));
  CHECK(hub_bound(graph, two_devices(CommunicationMode::kDuplex)) == Time(70));
  CHECK(hub_bound(graph, two_devices(CommunicationMode::kParallel)) == Time(0));
}

// Twenty operators of 30 between two of one group. With tensors of 20 there and back, a device of
// which nothing waits for what it sends may give away 9.
TEST_CASE("hub: a device that sends while it receives has two queues") {
  OpGraphBuilder builder("there and back");
  const OpId first = add_op(builder, "first", 0, 0, "hub");
  std::vector<OpId> between, away;
  for (int i = 0; i < 20; ++i) {
    between.push_back(add_op(builder, "op" + std::to_string(i), 30, 20));
    builder.connect(builder.add_output(first, Bytes(20)), between.back());
    if (i < 9) away.push_back(between.back());
  }
  const OpId last = add_op(builder, "last", 0, 0, "hub");
  for (const OpId op : between) builder.connect(*builder.output(op, 0), last);
  const OpGraph graph = std::move(builder).build();
  const Cluster duplex = two_devices(CommunicationMode::kDuplex);
  CHECK(step_with(graph, duplex, away) == Time(330));
  CHECK(hub_bound(graph, duplex).value() > Time(200));
  CHECK(hub_bound(graph, duplex).value() <= Time(330));
  CHECK(hub_bound(graph, two_devices(CommunicationMode::kSequential)).value() > Time(330));
}

TEST_CASE("hub: a tensor with many readers is sent once") {
  OpGraphBuilder builder("one tensor");
  const OpId first = add_op(builder, "first", 0, 40);
  std::vector<OpId> away;
  for (int i = 0; i < 20; ++i) {
    const OpId op = add_op(builder, "op" + std::to_string(i), 30, 0);
    builder.connect(*builder.output(first, 0), op);
    if (i < 9) away.push_back(op);
  }
  const OpGraph graph = std::move(builder).build();
  const Cluster cluster = two_devices(CommunicationMode::kSequential);
  CHECK(step_with(graph, cluster, away) == Time(330));
  CHECK(hub_bound(graph, cluster).value() <= Time(330));
}

// What could start on the hub's device only at 100 need not be there.
TEST_CASE("hub: an operator elsewhere does not have the head that it would have there") {
  OpGraphBuilder builder("two pins");
  const OpId source = add_op(builder, "source", 0, 100), before = add_op(builder, "before", 1, 0);
  const OpId after = add_op(builder, "after", 5, 500), hub = add_op(builder, "hub", 10, 0);
  builder.set_pin(source, "gpu:0");
  builder.set_pin(hub, "gpu:1");
  builder.connect(*builder.output(source, 0), before);
  builder.add_control_edge(before, after);
  builder.connect(*builder.output(after, 0), hub);
  const OpGraph graph = std::move(builder).build();
  const Cluster cluster = two_devices(CommunicationMode::kSequential);
  CHECK(step_with(graph, cluster, {after, hub}) == Time(16));
  CHECK(hub_bound(graph, cluster).value() <= Time(16));
}

// x is of 50 before the barrier and of 50 after it; the rope to it is not worth both of these, and
// neither is free to leave out once the other is.
TEST_CASE("hub: work at both ends of the step is left out once") {
  OpGraphBuilder builder("both ends");
  add_op(builder, "start", 0, 0, "hub");
  const OpId first = add_op(builder, "first", 50, 0), x = add_op(builder, "x", 50, 0, "x");
  const OpId before = add_op(builder, "before", 1, 0, "hub");
  const OpId barrier = add_op(builder, "barrier", 0, 100, "hub");
  const OpId after = add_op(builder, "after", 1, 0, "hub"), last = add_op(builder, "last", 50, 0);
  const OpId more = add_op(builder, "more of x", 50, 0, "x");
  builder.connect(*builder.output(barrier, 0), more);
  builder.add_control_edge(first, before);
  builder.add_control_edge(before, barrier);
  builder.add_control_edge(x, barrier);
  builder.add_control_edge(barrier, after);
  builder.add_control_edge(after, last);
  const OpGraph graph = std::move(builder).build();
  const Cluster cluster = two_devices(CommunicationMode::kSequential);
  CHECK(step_with(graph, cluster, {first, last}) == Time(102));
  CHECK(hub_bound(graph, cluster).value() <= Time(102));
}

TEST_CASE("hub: it never exceeds the exact optimum, and is above the load where there is a hub") {
  const HubShape shapes[] = {{},
                             {.max_bytes = 400},
                             {.max_time = 100, .cpu_chance = 0.0},
                             {.max_time = 200, .group_chance = 0.0},
                             {.group_chance = 0.9, .reader_chance = 0.0},
                             {.cpu_chance = 0.9, .reader_chance = 0.9},
                             {.max_bytes = 0, .reader_chance = 0.6},
                             {.group_chance = 0.0, .cpu_chance = 0.0, .barrier_chance = 1.0},
                             {.max_bytes = 20,
                              .group_chance = 0.0,
                              .cpu_chance = 0.0,
                              .reader_chance = 0.0,
                              .early_chance = 0.0,
                              .barrier_chance = 1.0},
                             {.max_time = 1},
                             {.max_time = 0}};
  std::size_t solved = 0, above = 0;
  for (const HubShape& shape : shapes)
    for (std::uint64_t seed = 0; seed < effort(1000); ++seed) {
      CAPTURE(seed);
      const OpGraph graph = random_hub(seed, shape);
      const Cluster cluster = seed % 2 == 0 ? testing::random_cluster(seed, Bytes(100'000))
                                            : testing::byte_per_ns(2 + seed / 2 % 2, mode_of(seed),
                                                                   Time(0), Bytes(100'000));
      const std::optional<testing::Optimum> best = testing::optimal_makespan(graph, cluster);
      const std::optional<Time> found = hub_bound(graph, cluster);
      if (!best.has_value() || !found.has_value()) continue;
      REQUIRE(*found <= best->makespan);
      ++solved;
      for (const NamedBound& bound : lower_bounds(CostModel(graph, cluster)))
        if (bound.name == std::string("load") && *found > bound.value) ++above;
    }
  CHECK(solved > effort(2000));
  CHECK(above > effort(100));
}

TEST_CASE("hub: it never exceeds the exact optimum on instances of every kind") {
  std::size_t solved = 0;
  for (const testing::Regime& regime : testing::regimes()) {
    CAPTURE(regime.name);
    for (std::uint64_t seed = 0; seed < effort(300); ++seed) {
      CAPTURE(seed);
      const auto [graph, cluster] = testing::instance_of(regime, seed);
      const std::optional<testing::Optimum> best = testing::optimal_makespan(graph, cluster);
      if (!best.has_value()) continue;
      ++solved;
      REQUIRE(hub_bound(graph, cluster).value_or(Time(0)) <= best->makespan);
    }
  }
  CHECK(solved > effort(3000));
}

}  // namespace
}  // namespace baechi
