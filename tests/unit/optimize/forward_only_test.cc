// SPDX-License-Identifier: Apache-2.0
#include "baechi/optimize/forward_only.h"

#include <doctest/doctest.h>

#include <utility>

#include "baechi/base/random.h"
#include "baechi/graph/op_graph_builder.h"
#include "baechi/simulate/execution_simulator.h"
#include "unit/graphs.h"

namespace baechi {
namespace {

//   f --> g --+
//   |     |   v
//   f' <- g' <- loss'     loss' has no forward operator; f' and g' have f and g
OpGraph training() {
  OpGraphBuilder builder("training");
  const auto add = [&](const char* name, std::int64_t time) {
    return testing::timed(builder,
                          {.name = name, .permanent = Bytes(time), .temporary = Bytes(2 * time)},
                          Time(time));
  };
  const OpId f = add("f", 1), g = add("g", 2), loss = add("loss'", 4);
  const OpId gb = add("g'", 8), fb = add("f'", 16);
  const TensorId f_out = builder.add_output(f, Bytes(100));
  builder.connect(f_out, g);
  builder.connect(f_out, fb);
  const TensorId g_out = builder.add_output(g, Bytes(200));
  builder.connect(g_out, loss);
  builder.connect(g_out, gb);
  builder.connect(builder.add_output(loss, Bytes(10)), gb);
  builder.connect(builder.add_output(gb, Bytes(20)), fb);
  builder.set_forward(gb, g);
  builder.set_forward(fb, f);
  builder.set_backward(loss);
  return std::move(builder).build();
}

TEST_CASE("forward-only: forward operators carry their backward operators' costs") {
  const OpGraph graph = training();
  const Cluster cluster = testing::unit_latency_cluster(2, Bytes(2'000));
  const Optimized small = forward_only(CostModel(graph, cluster));
  REQUIRE(small.graph.num_ops() == 2);
  CHECK(small.graph.times(KindId(0))[OpId(0)] == Time(1 + 16));
  CHECK(small.graph.times(KindId(0))[OpId(1)] == Time(2 + 8 + 4));  // loss' follows g, its parent
  CHECK(small.graph.output_bytes(OpId(0)) == Bytes(200));
  CHECK(small.graph.num_edges() == 1);
  // g's crew: permanent 2 + 4 + 8, outputs of loss' and g'; nothing arrives from elsewhere.
  CHECK(small.graph[OpId(1)].permanent == Bytes(14 + 10 + 20));
  // f's crew: permanent 1 + 16, and a copy of what g' sends.
  CHECK(small.graph[OpId(0)].permanent == Bytes(17 + 20));
  CHECK(small.graph[OpId(1)].temporary == Bytes(32));
  const PlacedGraph placed = expand(small.expansion, {Placement{DeviceId(1), DeviceId(0)}, {}});
  CHECK(placed.device ==
        Placement{DeviceId(1), DeviceId(0), DeviceId(0), DeviceId(0), DeviceId(1)});
}

//   f <~ a <~ b    c <~ d <~ e <~ c, and h ~> c: derivatives of each other, f the only forward one
TEST_CASE("forward-only: derivatives of derivatives follow the first; circles of them end") {
  OpGraphBuilder builder("chains");
  const auto add = [&](const char* name) {
    return testing::timed(builder, {.name = name}, Time(1));
  };
  const OpId b = add("b"), a = add("a"), h = add("h"), c = add("c"), d = add("d"), e = add("e");
  const OpId f = add("f");
  const std::pair<OpId, OpId> follows[] = {{a, f}, {b, a}, {d, c}, {e, d}, {c, e}, {h, c}};
  for (const auto& [op, forward] : follows) builder.set_forward(op, forward);
  builder.connect(builder.add_output(f, Bytes(1)), c);
  for (const auto& [from, to] : {std::pair(c, d), std::pair(d, e), std::pair(e, h)})
    builder.connect(builder.add_output(from, Bytes(1)), to);
  const OpGraph graph = std::move(builder).build();
  const Cluster cluster = testing::unit_latency_cluster(2, Bytes(2'000));
  const Optimized small = forward_only(CostModel(graph, cluster));
  REQUIRE(small.graph.num_ops() == 1);
  CHECK(small.graph.times(KindId(0))[OpId(0)] == Time(7));
}

TEST_CASE("forward-only: without room for everything it places both, and says so") {
  const OpGraph graph = training();
  const Cluster cluster = testing::unit_latency_cluster(2, Bytes(100));
  const Optimized same = forward_only(CostModel(graph, cluster));
  CHECK(same.graph.num_ops() == 5);
  CHECK(same.passes[0].note.find("placed too") != std::string::npos);
  const OpGraph inference = testing::figure_1();
  CHECK(forward_only(CostModel(inference, cluster)).graph.num_ops() == 6);
}

// Two groups that hold everything until the step ends: f's 200 bytes and 37 permanent ones; g's 400
// and 44, and the copy of 200 that g receives. In all 881, and each of the two devices must still
// have room for g's 644 and for temporary memory of 32.
TEST_CASE("forward-only: needs room for the largest group on every device") {
  const OpGraph graph = training();
  const auto ops_left = [&](std::int64_t both_capacities) {
    const Cluster cluster =
        testing::unit_latency_cluster(2, Bytes(both_capacities / 2 + both_capacities % 2));
    return forward_only(CostModel(graph, cluster)).graph.num_ops();
  };
  const std::int64_t everything = 237 + 644 + 2 * (644 + 32);
  CHECK(ops_left(everything + 1) == 2);
  CHECK(ops_left(everything - 2) == 5);
}

// What the small graph says fits, fits.
TEST_CASE("forward-only: no device holds more than the small graph foresees") {
  std::size_t tried = 0;
  for (std::uint64_t seed = 1; seed <= 1500; ++seed) {
    CAPTURE(seed);
    Random random(seed);
    testing::RandomDag limits{.max_ops = 16, .backward_chance = 0.5, .max_time = 1'000'000'000};
    if (random.chance(0.5)) limits.memory_mode = MemoryMode::kRetain;
    if (random.chance(0.3)) limits.group_chance = 0.3;
    const OpGraph graph = testing::random_dag(seed, limits);
    const Cluster cluster = testing::unit_latency_cluster(3, Bytes(100'000));
    const CostModel costs(graph, cluster);
    const Optimized small = forward_only(costs);
    if (small.expansion.member_order() != MemberOrder::kApart) continue;
    ++tried;
    PlacedGraph placed{Placement(small.graph.num_ops(), DeviceId(0)), {}};
    for (const OpId op : small.graph.ops()) {
      placed.device[op] = DeviceId(random.below(3));
      if (small.graph[op].group.has_value())
        placed.device[op] = placed.device[small.graph.members(*small.graph[op].group).front()];
    }
    const Trace foreseen = simulate(CostModel(small.graph, cluster), placed);
    const Trace real = simulate(costs, expand(small.expansion, placed));
    for (const DeviceId device : cluster.devices())
      CHECK(real.devices[device].peak <= foreseen.devices[device].peak);
  }
  CHECK(tried > 700);
}

}  // namespace
}  // namespace baechi
