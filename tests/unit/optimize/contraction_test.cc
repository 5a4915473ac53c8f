// SPDX-License-Identifier: Apache-2.0
#include "baechi/optimize/contraction.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <numeric>

#include "baechi/base/random.h"
#include "baechi/graph/op_graph_builder.h"
#include "baechi/optimize/acyclic_contraction.h"
#include "baechi/simulate/execution_simulator.h"
#include "unit/graphs.h"
#include "unit/simulate/small_clusters.h"

namespace baechi {
namespace {

using testing::random_dag;

Bytes peak_of(const Trace& trace) { return trace.devices[DeviceId(0)].peak; }

// Operators of a random graph fused at random, without cycles.
OpLabels random_clusters(const OpGraph& graph, Random& random) {
  AcyclicContraction contraction(graph, {});
  for (const OpId op : graph.ops())
    for (const Edge& edge : graph.out_edges(op))
      if (random.chance(0.5) && contraction.find(edge.from) != contraction.find(edge.to))
        contraction.contract(edge.from, edge.to);
  OpLabels cluster(graph.num_ops());
  for (const OpId op : graph.ops()) cluster[op] = contraction.find(op);
  return cluster;
}

//            +--> b (2 ns) --+
//   a (1 ns) |               +--> d (4 ns) --> e (5 ns)
//            +--> c (3 ns) --+
// a's output (10 bytes) is shared by b, c and e; b makes 20 bytes, c 30, d 40, e 50. {b, c, d}
// fuse.
struct Diamond {
  OpGraph graph;
  Contracted small;
};
Diamond diamond(MemoryMode mode, bool backward) {
  OpGraphBuilder builder("diamond");
  builder.set_memory_mode(mode);
  std::vector<OpId> ops;
  std::vector<TensorId> out;
  for (int i = 0; i < 5; ++i) {
    const std::string name(1, static_cast<char>('a' + i));
    const OpId op = testing::timed(builder,
                                   {.name = name,
                                    .permanent = Bytes(i + 1),
                                    .temporary = Bytes(i == 2 ? 7 : 0),
                                    .backward = backward},
                                   Time(i + 1));
    ops.push_back(op);
    out.push_back(builder.add_output(op, Bytes(10 * (i + 1))));
  }
  for (const int consumer : {1, 2, 4})
    builder.connect(out[0], ops[static_cast<std::size_t>(consumer)]);
  builder.connect(out[1], ops[3]);
  builder.connect(out[2], ops[3]);
  builder.connect(out[3], ops[4]);
  OpGraph graph = std::move(builder).build();
  OpLabels cluster = each_alone(graph);
  cluster[ops[1]] = cluster[ops[2]] = cluster[ops[3]] = 1;
  Contracted small = contract(graph, cluster, each_alone(graph));
  return {std::move(graph), std::move(small)};
}

TEST_CASE("contraction: a fused diamond has its members' time, memory and leaving tensors") {
  const auto [graph, small] = diamond(MemoryMode::kDataflow, false);
  REQUIRE(small.graph.num_ops() == 3);
  const OpId a(0), bcd(1), e(2);
  CHECK(small.graph[bcd].name == "b");
  CHECK(small.graph.times(KindId(0))[bcd] == Time(2 + 3 + 4));
  CHECK(small.graph[bcd].permanent == Bytes(2 + 3 + 4));
  // b's and c's tensors die inside. Worst are the 20 + 30 + 40 while d runs, 40 of which leave; c
  // has 20 + 30 + 7.
  CHECK(small.graph[bcd].temporary == Bytes(20 + 30));
  CHECK(small.graph.output_bytes(bcd) == Bytes(40));
  CHECK(small.graph.output_bytes(a) == Bytes(10));
  const std::span<const Edge> shared = small.graph.consumers(*small.graph.outputs(a).begin());
  REQUIRE(shared.size() == 2);  // one tensor, read by the meta-operator and by e
  CHECK(shared[0].to == bcd);
  CHECK(shared[1].to == e);
  CHECK(small.graph.num_edges() == 3);
  const std::span<const OpId> members = small.expansion.members(bcd);
  CHECK(std::vector<OpId>(members.begin(), members.end()) ==
        std::vector{OpId(1), OpId(2), OpId(3)});
}

TEST_CASE("contraction: retained forward tensors inside a meta-operator stay until the step ends") {
  const auto forward = diamond(MemoryMode::kRetain, false);
  CHECK(forward.small.graph.output_bytes(OpId(1)) == Bytes(40 + 20 + 30));
  CHECK(forward.small.graph[OpId(1)].temporary == Bytes(0));
  const auto backward = diamond(MemoryMode::kRetain, true);
  CHECK(backward.small.graph.output_bytes(OpId(1)) == Bytes(40));
}

TEST_CASE("contraction: a meta-operator runs where all members can") {
  OpGraphBuilder builder("kinds");
  const OpId a = testing::timed(builder, {.name = "a"}, Time(1)),
             b = testing::timed(builder, {.name = "b"}, Time(2));
  builder.set_time(a, "*", Time(10));
  builder.set_time(b, "cpu", Time(20));
  builder.connect(builder.add_output(a, Bytes(1)), b);
  const OpGraph graph = std::move(builder).build();
  OpLabels cluster(2, 0);
  const Contracted small = contract(graph, cluster, cluster);
  const auto time = [&](const char* kind) {
    const std::optional<KindId> id = small.graph.find_kind(kind);
    return id.has_value() ? small.graph.times(*id)[OpId(0)] : std::nullopt;
  };
  CHECK(time("gpu") == Time(3));
  CHECK(time("cpu") == Time(30));
  CHECK_FALSE(time("*").has_value());
}

TEST_CASE("contraction: pins, groups, forward links and control edges carry over") {
  OpGraphBuilder builder("links");
  const auto add = [&](const char* name) {
    return testing::timed(builder, {.name = name}, Time(1));
  };
  const OpId a = add("a"), b = add("b"), c = add("c"), d = add("d");
  builder.connect(builder.add_output(a, Bytes(1)), b);
  builder.add_control_edge(b, c);
  builder.connect(builder.add_output(c, Bytes(1)), d);
  builder.set_forward(d, a);
  builder.set_backward(c);
  builder.set_pin(b, "gpu:3");
  const OpGraph graph = std::move(builder).build();
  OpLabels cluster = each_alone(graph);
  cluster[b] = cluster[a];
  cluster[d] = cluster[c];
  const Contracted small = contract(graph, cluster, OpLabels(4, 2));
  REQUIRE(small.graph.num_ops() == 2);
  CHECK(small.graph[OpId(0)].pin == "gpu:3");
  CHECK(small.graph[OpId(1)].forward == OpId(0));
  CHECK(small.graph[OpId(1)].backward);
  CHECK_FALSE(small.graph[OpId(0)].backward);
  REQUIRE(small.graph.num_edges() == 1);
  CHECK_FALSE(small.graph.out_edges(OpId(0))[0].tensor.has_value());
  CHECK(small.graph.num_groups() == 1);
  CHECK(small.graph.members(GroupId(0)).size() == 2);
}

// On one device, a plan of the small graph is a plan of the original: same time, and what the small
// graph says about memory is never too little. (Operators that take no time at all count at one
// moment with their successors, which no meta-operator can express: none of these here.)
TEST_CASE(
    "contraction: one device takes the same time and no more memory than the small graph says") {
  for (std::uint64_t seed = 1; seed <= 1500; ++seed) {
    CAPTURE(seed);
    Random random(seed);
    testing::RandomDag limits{.max_ops = 14, .backward_chance = 0.3, .max_time = 1'000'000'000};
    if (random.chance(0.5)) limits.memory_mode = MemoryMode::kRetain;
    const OpGraph graph = random_dag(seed, limits);
    const Contracted small = contract(graph, random_clusters(graph, random), each_alone(graph));
    const Cluster cluster = testing::equal_devices(1, Bytes(1), Time(1));

    PlacedGraph placed{Placement(small.graph.num_ops(), DeviceId(0)), DeviceOrder(1)};
    for (const OpId op : small.graph.ops()) (*placed.order)[DeviceId(0)].push_back(op);
    const Trace of_small = simulate(CostModel(small.graph, cluster), placed);
    const Trace of_graph = simulate(CostModel(graph, cluster), expand(small.expansion, placed));
    CHECK(of_graph.schedule.makespan == of_small.schedule.makespan);
    CHECK(peak_of(of_graph) <= peak_of(of_small));
    if (small.graph.num_ops() == 1) CHECK(peak_of(of_graph) == peak_of(of_small));
  }
}

TEST_CASE("contraction: contracting nothing keeps every cost") {
  for (std::uint64_t seed = 1; seed <= 200; ++seed) {
    CAPTURE(seed);
    const OpGraph graph =
        random_dag(seed, {.group_chance = 0.4, .pin_chance = 0.1, .cpu_chance = 0.4});
    const Contracted same = contract(graph, each_alone(graph), group_labels(graph));
    REQUIRE(same.graph.num_ops() == graph.num_ops());
    for (const OpId op : same.graph.ops()) {
      const OpId old = same.expansion.members(op).front();
      CHECK(same.graph[op].name == graph[old].name);
      CHECK(same.graph[op].permanent == graph[old].permanent);
      CHECK(same.graph[op].temporary == graph[old].temporary);
      CHECK(same.graph[op].pin == graph[old].pin);
      CHECK(same.graph.output_bytes(op) == graph.output_bytes(old));
      for (const KindId kind : graph.kinds())
        if (graph.times(kind)[old].has_value())
          CHECK(same.graph.times(*same.graph.find_kind(graph.kind_name(kind)))[op] ==
                graph.times(kind)[old]);
      for (const OpId other : same.graph.ops()) {
        const OpId old_other = same.expansion.members(other).front();
        if (op < other)
          CHECK((same.graph[op].group.has_value() &&
                 same.graph[op].group == same.graph[other].group) ==
                (graph[old].group.has_value() && graph[old].group == graph[old_other].group));
      }
    }
  }
}

}  // namespace
}  // namespace baechi
