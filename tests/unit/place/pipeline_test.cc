// SPDX-License-Identifier: Apache-2.0
#include "baechi/place/pipeline/pipeline.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "baechi/bounds/lower_bounds.h"
#include "baechi/graph/op_graph_builder.h"
#include "baechi/place/pipeline/blocks.h"
#include "baechi/place/pipeline/play.h"
#include "baechi/place/pipeline/rules.h"
#include "baechi/place/topological_sequences.h"
#include "baechi/simulate/execution_simulator.h"
#include "baechi/verify/check_schedule.h"
#include "unit/graphs.h"
#include "unit/place/pipeline_graphs.h"
#include "unit/simulate/small_clusters.h"

namespace baechi {
namespace {

using testing::equal_devices;
using testing::training;

constexpr Bytes kAmple = Bytes(1'000'000'000);

// The plan's trace, after every check that a plan has to pass.
std::optional<Trace> planned(const OpGraph& graph, const Cluster& cluster,
                             std::uint32_t micro_batches) {
  const CostModel costs(graph, cluster);
  const Unrolled unrolled = unroll(graph, micro_batches);
  const CostModel step(unrolled.graph, cluster);
  const PlaceResult result = place_pipeline({costs, unrolled, step}, {});
  if (!std::holds_alternative<PlacedGraph>(result)) return std::nullopt;
  Trace trace = simulate(step, std::get<PlacedGraph>(result));
  CHECK(check_schedule(unrolled.graph, cluster, trace.schedule) == std::vector<std::string>{});
  CHECK_FALSE(find_overflow(trace, cluster).has_value());
  return trace;
}

Time step_of(const OpGraph& graph, const Cluster& cluster, std::uint32_t micro_batches) {
  const auto trace = planned(graph, cluster, micro_batches);
  REQUIRE(trace.has_value());
  return trace->schedule.makespan;
}

// 1F1B takes (M + S - 1) stages of 3 x 4 ns; with the backward pass in two, all but the first
// and last (S - 1) forward passes and gradients by inputs overlap: M x 12 + (S - 1) x 4.
TEST_CASE("pipeline: equal layers take what the theory of 1F1B and of zero bubbles says") {
  const Cluster cluster = equal_devices(4, kAmple);
  const std::vector<std::int64_t> sixteen(16, 1);
  for (const std::uint32_t micro_batches : {4U, 8U, 16U}) {
    CAPTURE(micro_batches);
    CHECK(step_of(training({.forward = sixteen, .split = false}), cluster, micro_batches) <=
          Time((micro_batches + 3) * 12));
    CHECK(step_of(training({.forward = sixteen}), cluster, micro_batches) <=
          Time(micro_batches * 12 + 3 * 4));
  }
}

// One device of double speed and one of half: layers 4 to 1. Equal layers would take four times
// the fast one's half.
TEST_CASE("pipeline: unequal devices get unequal stages, in either order") {
  for (const bool fast_first : {true, false}) {
    ClusterSpec spec = equal_devices(2, kAmple, Time(0)).spec();
    spec.devices[fast_first ? 1 : 0].speed = Speed(250'000);
    const Cluster cluster(spec);
    const OpGraph graph = training({.forward = std::vector<std::int64_t>(10, 100)});
    // Work for 8 and 2 layers: 2400 each; what fills and drains is at most one stage's.
    CHECK(step_of(graph, cluster, 16) <= Time(17 * 2400));
  }
}

// Two stages of 4 layers, 120 ns for one micro-batch: 1F1B takes 9 of them. A device may hold what
// two micro-batches and a transfer keep; GPipe would keep eight.
TEST_CASE("pipeline: little memory takes fewer micro-batches at a time, not more time") {
  const OpGraph graph =
      training({.forward = std::vector<std::int64_t>(8, 10), .split = false, .kept = Bytes(100)});
  CHECK(step_of(graph, equal_devices(2, Bytes(1'400)), 8) <= Time(9 * 120));
}

TEST_CASE("pipeline: what no order can hold does not fit") {
  const OpGraph graph = training({.forward = {1, 1}, .kept = Bytes(1), .weights = Bytes(100)});
  CHECK_FALSE(planned(graph, equal_devices(2, Bytes(50)), 4).has_value());
}

//  a0 .. a3 \                 three devices: one branch each for two of them, and what joins them
//            join0 .. join3   on the third. As a chain of stages b would wait for a.
//  b0 .. b3 /
TEST_CASE("pipeline: branches side by side do not wait for each other") {
  OpGraphBuilder builder("branches");
  const auto branch = [&](const std::string& name) {
    std::vector<OpId> ops;
    for (int i = 0; i < 4; ++i) {
      ops.push_back(testing::timed(builder, {.name = name + std::to_string(i)}, Time(100)));
      if (i > 0) builder.connect(builder.add_output(ops[ops.size() - 2], Bytes(1)), ops.back());
    }
    return ops;
  };
  const auto a = branch("a"), b = branch("b"), join = branch("join");
  builder.connect(builder.add_output(a.back(), Bytes(1)), join.front());
  builder.connect(builder.add_output(b.back(), Bytes(1)), join.front());
  const OpGraph graph = std::move(builder).build();
  CHECK(step_of(graph, equal_devices(3, kAmple), 4) == Time(4 * 400 + 400));
}

TEST_CASE("pipeline: never longer than a named schedule that fits") {
  const OpGraph graph = training({.forward = {5, 1, 9, 2, 2, 7, 3, 3, 8, 1, 1, 6}});
  ClusterSpec spec = equal_devices(3, kAmple, Time(2)).spec();
  spec.devices[1].speed = Speed(600'000);
  const Cluster cluster(spec);
  const CostModel costs(graph, cluster);
  for (const std::uint32_t micro_batches : {2U, 6U, 12U}) {
    const Unrolled unrolled = unroll(graph, micro_batches);
    const CostModel step(unrolled.graph, cluster);
    const Time own = step_of(graph, cluster, micro_batches);
    int defined = 0;
    for (const pipeline::NamedSchedule& schedule : pipeline::named_schedules())
      for (const NamedStages stages : {NamedStages::kEqualLayers, NamedStages::kDivided}) {
        CAPTURE(schedule.name);
        const PlaceResult result = place_named({costs, unrolled, step}, schedule, stages, {});
        if (!std::holds_alternative<PlacedGraph>(result)) continue;
        ++defined;
        CHECK(own <= simulate(step, std::get<PlacedGraph>(result)).schedule.makespan);
      }
    CHECK(defined >= 8);
  }
}

// The stages of equal layers, by the names: 1F1B of 4 stages x 4 layers x 3 ns.
TEST_CASE("pipeline: a named schedule over equal layers takes what the theory says") {
  const OpGraph graph = training({.forward = std::vector<std::int64_t>(16, 1), .split = false});
  const Cluster cluster = equal_devices(4, kAmple);
  const CostModel costs(graph, cluster);
  const Unrolled unrolled = unroll(graph, 8);
  const CostModel step(unrolled.graph, cluster);
  const auto makespan = [&](std::string_view name) {
    for (const pipeline::NamedSchedule& schedule : pipeline::named_schedules())
      if (schedule.name == name)
        return simulate(step, std::get<PlacedGraph>(place_named({costs, unrolled, step}, schedule,
                                                                NamedStages::kEqualLayers, {})))
            .schedule.makespan;
    return Time(0);
  };
  CHECK(makespan("gpipe") == Time((8 + 3) * 12));
  CHECK(makespan("1f1b") == Time((8 + 3) * 12));
  CHECK(makespan("interleaved") == Time(8 * 12 + 3 * 6));
}

TEST_CASE("blocks: a backward pass in two is told apart, and runs of blocks stay acyclic") {
  const OpGraph graph = training({.forward = std::vector<std::int64_t>(12, 1)});
  const Cluster cluster = equal_devices(2, kAmple);
  const CostModel costs(graph, cluster);
  for (const std::size_t most : {2UL, 5UL, 100UL}) {
    const pipeline::Blocks blocks(costs, depth_first_sequence(graph), most);
    CHECK(blocks.size() <= 12);
    for (const OpId op : graph.ops()) {
      const std::string_view name = graph[op].name;
      if (const auto forward = graph[op].forward)
        CHECK(blocks.block_of(op) == blocks.block_of(*forward));
      if (name.back() == 'f') CHECK(blocks.phase_of(op) == pipeline::Phase::kForward);
      if (name.back() == 'w') CHECK(blocks.phase_of(op) == pipeline::Phase::kWeight);
      if (name == "layers/5/b" && blocks.size() == 12)
        CHECK(blocks.phase_of(op) == pipeline::Phase::kInput);
      // Nobody behind it: nothing waits for the gradient by the first block's inputs.
      if (name == "layers/0/b") CHECK(blocks.phase_of(op) == pipeline::Phase::kWeight);
    }
  }
}

}  // namespace
}  // namespace baechi
