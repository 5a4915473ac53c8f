// SPDX-License-Identifier: Apache-2.0
#include "baechi/optimize/colocation.h"

#include <doctest/doctest.h>

#include <algorithm>

#include "baechi/base/random.h"
#include "baechi/graph/op_graph_builder.h"
#include "baechi/simulate/execution_simulator.h"
#include "unit/graphs.h"

namespace baechi {
namespace {

// a -> b -> c -> d in groups {a, c} and {b, d}; outputs of 10, 20, 30, 40 bytes, 1 of permanent
// memory and 5 of temporary each.
OpGraph braid() {
  OpGraphBuilder builder("braid");
  std::optional<TensorId> previous;
  for (int i = 0; i < 4; ++i) {
    const std::string name(1, static_cast<char>('a' + i));
    const OpId op = testing::timed(
        builder, {.name = name, .permanent = Bytes(1), .temporary = Bytes(5)}, Time(10 * (i + 1)));
    builder.add_to_group(op, i % 2 == 0 ? "even" : "odd");
    if (previous.has_value()) builder.connect(*previous, op);
    previous = builder.add_output(op, Bytes(10 * (i + 1)));
  }
  return std::move(builder).build();
}

TEST_CASE("colocation: a group needs the peak of its own schedule, not the sum of its outputs") {
  const IdVector<GroupId, Bytes> memory = group_memory(braid());
  REQUIRE(memory.size() == 2);
  // a: 2 + 5 + 10. b runs elsewhere: 10, and 20 on their way. c: 20 in, 30 out and 5. d: 30.
  CHECK(memory[GroupId(0)] == Bytes(2 + 20 + 30 + 5));
  // d: 30 in, 40 out and 5.
  CHECK(memory[GroupId(1)] == Bytes(2 + 30 + 40 + 5));
}

// Run in topological order on one device, a graph that is one group needs what the simulator says.
TEST_CASE("colocation: the memory of an all-embracing group is the simulated peak") {
  for (std::uint64_t seed = 1; seed <= 500; ++seed) {
    CAPTURE(seed);
    Random random(seed);
    testing::RandomDag limits{.max_ops = 16, .backward_chance = 0.3, .max_time = 1'000'000'000};
    if (random.chance(0.5)) limits.memory_mode = MemoryMode::kRetain;
    const OpGraph graph = testing::random_dag(seed, limits);
    const Contracted one = contract(graph, each_alone(graph), OpLabels(graph.num_ops(), 0));
    if (one.graph.num_groups() == 0) continue;
    const Cluster cluster = testing::unit_latency_cluster(1, Bytes(1));
    PlacedGraph placed{Placement(graph.num_ops(), DeviceId(0)), DeviceOrder(1)};
    for (const OpId op : one.graph.topological_order()) (*placed.order)[DeviceId(0)].push_back(op);
    const Trace trace = simulate(CostModel(one.graph, cluster), placed);
    CHECK(group_memory(one.graph)[GroupId(0)] == trace.devices[DeviceId(0)].peak);
  }
}

TEST_CASE("colocation: post-adjustment follows time, memory or the majority") {
  OpGraphBuilder builder("torn");
  for (int i = 0; i < 4; ++i) {
    const OpId op = testing::timed(
        builder, {.name = "op" + std::to_string(i), .permanent = Bytes(i == 1 ? 50 : 1)},
        Time(i == 0 ? 90 : 1));
    builder.add_to_group(op, "all");
  }
  const OpGraph graph = std::move(builder).build();
  const Cluster cluster = testing::unit_latency_cluster(3, Bytes(100));
  const CostModel costs(graph, cluster);
  const PlacedGraph torn{Placement{DeviceId(0), DeviceId(1), DeviceId(2), DeviceId(2)},
                         DeviceOrder{{OpId(0)}, {OpId(1)}, {OpId(3), OpId(2)}}};
  const auto device = [&](PostAdjust strategy) {
    const PlacedGraph adjusted = post_adjust(costs, torn, strategy);
    for (const OpId op : graph.ops()) CHECK(adjusted.device[op] == adjusted.device[OpId(0)]);
    simulate(costs, adjusted);
    return adjusted.device[OpId(0)];
  };
  CHECK(device(PostAdjust::kComputeDominant) == DeviceId(0));
  CHECK(device(PostAdjust::kMemoryDominant) == DeviceId(1));
  CHECK(device(PostAdjust::kMajority) == DeviceId(2));
  const PlacedGraph adjusted = post_adjust(costs, torn, PostAdjust::kMajority);
  const std::vector<OpId>& order = (*adjusted.order)[DeviceId(2)];
  CHECK(std::find(order.begin(), order.end(), OpId(3)) <
        std::find(order.begin(), order.end(), OpId(2)));
}

TEST_CASE("colocation: adjusted plans keep every group together and never deadlock") {
  for (std::uint64_t seed = 1; seed <= 500; ++seed) {
    CAPTURE(seed);
    Random random(seed);
    const OpGraph graph = testing::random_dag(seed, {.max_ops = 16, .group_chance = 0.6});
    const Cluster cluster = testing::unit_latency_cluster(3, Bytes(100));
    const CostModel costs(graph, cluster);
    PlacedGraph torn{Placement(graph.num_ops(), DeviceId(0)), DeviceOrder(3)};
    for (const OpId op : graph.ops()) {
      torn.device[op] = DeviceId(random.below(3));
      (*torn.order)[torn.device[op]].push_back(op);
    }
    for (const PostAdjustName& entry : post_adjust_names()) {
      const PlacedGraph adjusted = post_adjust(costs, torn, entry.strategy);
      simulate(costs, adjusted);
      for (const GroupId group : graph.groups())
        for (const OpId op : graph.members(group))
          CHECK(adjusted.device[op] == adjusted.device[graph.members(group).front()]);
    }
  }
}

TEST_CASE("colocation: groups that share a member are one, and ignoring them leaves none") {
  OpGraphBuilder builder("shared");
  for (int i = 0; i < 4; ++i) {
    const OpId op = testing::timed(builder, {.name = "op" + std::to_string(i)}, Time(1));
    builder.add_to_group(op, i == 3 ? "alone" : "g" + std::to_string(i / 2));
    if (i == 1) builder.add_to_group(op, "g1");
  }
  const OpGraph graph = std::move(builder).build();
  const Cluster cluster = testing::unit_latency_cluster(2, Bytes(100));
  const CostModel costs(graph, cluster);
  const Optimized tidy = colocate(costs);
  REQUIRE(tidy.graph.num_groups() == 1);
  CHECK(tidy.graph.members(GroupId(0)).size() == 3);
  CHECK(tidy.passes[0].after == PassStatistics::Size{4, 0, 1});
  CHECK(colocate(costs, {ColocationMode::kIgnore}).graph.num_groups() == 0);
}

}  // namespace
}  // namespace baechi
