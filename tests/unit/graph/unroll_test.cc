// SPDX-License-Identifier: Apache-2.0
#include "baechi/graph/unroll.h"

#include <doctest/doctest.h>

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "baechi/base/error.h"
#include "baechi/base/random.h"
#include "baechi/graph/op_graph_builder.h"
#include "baechi/io/graph/read_graph.h"
#include "baechi/io/graph/write_graph.h"
#include "baechi/simulate/execution_simulator.h"
#include "baechi/verify/check_schedule.h"
#include "unit/graph_sketch.h"
#include "unit/graphs.h"
#include "unit/simulate/small_clusters.h"

namespace baechi::testing {
namespace {

// w holds 10 and outputs 5; f keeps 4 for b; b's gradient of 6 is what u changes w with.
//
//   w(0) --5--> f(2) --4--> b(3) --6--> u(1)
OpGraph layer(bool marked) {
  OpGraphBuilder builder("layer");
  const OpId w = timed(builder, {.name = "w", .permanent = Bytes(10), .per_step = marked}, Time(0));
  const OpId f = timed(builder, {.name = "f", .temporary = Bytes(1)}, Time(2));
  const OpId b = timed(builder, {.name = "b", .forward = f}, Time(3));
  const OpId u = timed(builder, {.name = "u", .backward = true, .per_step = marked}, Time(1));
  builder.connect(builder.add_output(w, Bytes(5)), f);
  builder.connect(builder.add_output(f, Bytes(4)), b);
  builder.connect(builder.add_output(b, Bytes(6)), u);
  return std::move(builder).build();
}

Trace replay(const Unrolled& step, const Cluster& cluster, const DeviceLists& lists) {
  const Trace trace = simulate(CostModel(step.graph, cluster), in_order(step.graph, lists),
                               {.record_memory = true});
  CHECK(check_schedule(step.graph, cluster, trace.schedule).empty());
  return trace;
}

// One micro-batch after the other. The buffer of 6 lives from b@0 to u, once.
//   0 w, f@0   2 b@0   5 f@1   7 b@1   10 f@2   12 b@2   15 sum, u   16
TEST_CASE("unroll: a step of three micro-batches on one device, time and memory by hand") {
  const Unrolled step = unroll(layer(true), 3);
  const Trace trace = replay(step, byte_per_ns(1, CommunicationMode::kParallel),
                             {{"w", "f@0", "b@0", "f@1", "b@1", "f@2", "b@2", "b@sum", "u"}});
  CHECK(trace.schedule.makespan == Time(16));
  CHECK(trace.devices[kGpu0].memory ==
        std::vector<MemoryStep>{{Time(0), Bytes(10 + 5 + 4 + 1)},
                                {Time(2), Bytes(10 + 5 + 4 + 6)},
                                {Time(5), Bytes(10 + 5 + 6 + 4 + 1)},
                                {Time(7), Bytes(10 + 5 + 6 + 4)},
                                {Time(10), Bytes(10 + 5 + 6 + 4 + 1)},
                                {Time(12), Bytes(10 + 6 + 4)},
                                {Time(15), Bytes(10 + 6)},
                                {Time(16), Bytes(10)}});
}

// All forwards first: three micro-batches' 4 bytes are kept.
TEST_CASE("unroll: what micro-batches keep adds up while they are in flight") {
  const Unrolled step = unroll(layer(true), 3);
  const Trace trace = replay(step, byte_per_ns(1, CommunicationMode::kParallel),
                             {{"w", "f@0", "f@1", "f@2", "b@0", "b@1", "b@2", "b@sum", "u"}});
  CHECK(trace.schedule.makespan == Time(16));
  CHECK(trace.devices[kGpu0].peak == Bytes(10 + 3 * 4 + 6));
  CHECK(trace.devices[kGpu0].peak_at == Time(4));
}

TEST_CASE("unroll: what is of the step goes over a link once, a gradient after the last copy") {
  const Unrolled step = unroll(layer(true), 3);
  const Cluster cluster = byte_per_ns(2, CommunicationMode::kParallel);
  const Trace trace =
      replay(step, cluster, {{"f@0", "b@0", "f@1", "b@1", "f@2", "b@2", "b@sum"}, {"w", "u"}});
  REQUIRE(trace.schedule.transfers.size() == 2);
  const Transfer& weights = trace.schedule.transfers[0];
  CHECK(weights.requested == Time(0));
  CHECK(weights.end == Time(5));
  const Transfer& gradient = trace.schedule.transfers[1];
  CHECK(gradient.requested == Time(5 + 15));
  CHECK(gradient.end == Time(5 + 15 + 6));
  CHECK(trace.schedule.makespan == Time(5 + 15 + 6 + 1));
  CHECK(trace.devices[kGpu0].peak == Bytes(5 + 4 + 6 + 1));
}

TEST_CASE("unroll: copies share a device, permanent memory and each its micro-batch's edges") {
  const OpGraph graph = layer(true);
  const Unrolled step = unroll(graph, 2);
  const OpId f = op_named(graph, "f"), b = op_named(graph, "b"), w = op_named(graph, "w");
  CHECK(step.graph.num_ops() == 7);
  CHECK(step.graph[step.copy(f, 0)].name == "f@0");
  CHECK(step.graph[step.copy(f, 1)].name == "f@1");
  CHECK(step.copy(w, 1) == w);
  CHECK(step.graph[step.copy(f, 0)].group == step.graph[step.copy(f, 1)].group);
  CHECK(step.graph[step.copy(f, 0)].group.has_value());
  CHECK(step.graph[step.copy(b, 1)].forward == step.copy(f, 1));
  CHECK_FALSE(step.graph[w].group.has_value());
  Bytes permanent;
  for (const OpId op : step.graph.ops()) permanent += step.graph[op].permanent;
  CHECK(permanent == Bytes(10));
  const OpId sum = op_named(step.graph, "b@sum");
  CHECK(step.is_sum(sum));
  CHECK_FALSE(step.is_sum(step.copy(b, 1)));
  CHECK(step.original[sum] == b);
  CHECK(step.original[step.copy(f, 1)] == f);
  CHECK(step.micro_batch[step.copy(f, 1)] == 1);
  CHECK_FALSE(step.micro_batch[sum].has_value());
  CHECK_FALSE(step.micro_batch[w].has_value());
  CHECK(step.graph[sum].group == step.graph[step.copy(b, 1)].group);
}

//   f --8--> g (micro-batch), f --8--> u (step): a buffer besides the tensor that g reads
TEST_CASE("unroll: a tensor that a micro-batch and the step read is not the buffer itself") {
  OpGraphBuilder builder;
  const OpId f = timed(builder, {.name = "f"}, Time(1)), g = timed(builder, {.name = "g"}, Time(1));
  const OpId u = timed(builder, {.name = "u", .per_step = true}, Time(1));
  const TensorId out = builder.add_output(f, Bytes(8));
  builder.connect(out, g);
  builder.connect(out, u);
  const Unrolled step = unroll(std::move(builder).build(), 2);
  const Trace trace = replay(step, byte_per_ns(1, CommunicationMode::kParallel),
                             {{"f@0", "g@0", "f@1", "g@1", "f@sum", "u"}});
  CHECK(trace.devices[kGpu0].memory ==
        std::vector<MemoryStep>{{Time(0), Bytes(16)}, {Time(4), Bytes(8)}, {Time(5), Bytes(0)}});
}

TEST_CASE("unroll: names and groups never collide with those given") {
  OpGraphBuilder builder;
  const OpId x = timed(builder, {.name = "x"}, Time(1), "*");
  const OpId y = timed(builder, {.name = "x@1"}, Time(1), "*");
  timed(builder, {.name = "x@@0", .per_step = true}, Time(1), "*");
  const OpId s = timed(builder, {.name = "x@sum", .per_step = true}, Time(1), "*");
  builder.add_to_group(y, "x@copies");
  builder.connect(builder.add_output(x, Bytes(1)), s);
  const Unrolled step = unroll(std::move(builder).build(), 12);
  std::set<std::string> names;
  for (const OpId op : step.graph.ops()) names.emplace(step.graph[op].name);
  CHECK(names.size() == 12 + 12 + 2 + 1);
  CHECK(step.graph[step.copy(x, 0)].group != step.graph[step.copy(y, 0)].group);
}

TEST_CASE("unroll: one micro-batch is the graph itself, ids, names and all") {
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    CAPTURE(seed);
    const OpGraph graph = random_dag(seed, {.max_ops = 20, .group_chance = 0.3});
    CHECK(graph_to_json(unroll(graph, 1).graph) == graph_to_json(graph));
  }
}

TEST_CASE(
    "unroll: without marks, variables and updates are of the step, and nothing that computes") {
  const OpGraph graph = layer(false);
  CHECK_FALSE(graph.marks_steps());
  CHECK(once_per_step(graph) == IdVector<OpId, bool>{true, false, false, true});
  // Nothing tells here: a first operator that computes is no variable.
  CHECK(once_per_step(chain({Time(1), Time(1)}, Bytes(1), Bytes(1))) ==
        IdVector<OpId, bool>{false, false});
}

TEST_CASE("unroll: marks are kept in files, and contradicting ones are refused") {
  const OpGraph graph = layer(true);
  const OpGraph read = parse_graph(graph_to_json(graph), "text");
  CHECK(read.marks_steps());
  CHECK(once_per_step(read) == once_per_step(graph));
  OpGraphBuilder builder;
  const OpId f = timed(builder, {.name = "f"}, Time(1), "*");
  const OpId n = timed(builder, {.name = "norm", .per_step = true}, Time(1), "*");
  const OpId g = timed(builder, {.name = "g"}, Time(1), "*");
  builder.add_control_edge(f, n);
  builder.add_control_edge(n, g);
  CHECK_THROWS_WITH_AS(
      std::move(builder).build(),
      "operator 'norm' is marked \"per\": \"step\", but it waits for 'f' and 'g' waits for it, "
      "which both run once per micro-batch: an operator of the step runs before all micro-batches "
      "or after all of them",
      InputError);
  CHECK_THROWS_AS(unroll(graph, 0), InputError);
  CHECK_THROWS_WITH_AS(unroll(graph, 4'000'000'000), doctest::Contains("too many"), InputError);
}

// Marks such that the step's operators come first or last.
OpGraph with_marks(std::uint64_t seed) {
  const OpGraph graph = random_dag(
      seed, {.max_ops = 9,
             .backward_chance = 0.3,
             .memory_mode = seed % 3 == 0 ? MemoryMode::kRetain : MemoryMode::kDataflow});
  Random random(seed);
  std::string text = graph_to_json(graph);
  IdVector<OpId, bool> once(graph.num_ops());
  for (const OpId op : graph.topological_order()) {
    bool all = random.chance(0.5);
    for (const Edge& edge : graph.in_edges(op)) all = all && once[edge.from];
    once[op] = all;
  }
  IdVector<OpId, bool> late(graph.num_ops());
  const auto order = graph.topological_order();
  for (std::size_t i = order.size(); i-- > 0;) {
    bool all = random.chance(0.5);
    for (const Edge& edge : graph.out_edges(order[i])) all = all && late[edge.to];
    late[order[i]] = all;
    if (all) once[order[i]] = true;
  }
  for (const OpId op : graph.ops()) {
    if (!once[op]) continue;
    const std::string name = "{\"name\": \"" + std::string(graph[op].name) + "\"";
    const std::size_t at = text.find(name);
    REQUIRE(at != std::string::npos);
    text.insert(at + name.size(), ", \"per\": \"step\"");
  }
  return parse_graph(text, "text");
}

// In whatever order a device takes them, the simulator and the verifier agree on the step.
TEST_CASE("unroll: steps of random graphs are simulated as the verifier has it") {
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    CAPTURE(seed);
    const OpGraph graph = with_marks(seed);
    const Cluster cluster = byte_per_ns(2, CommunicationMode::kDuplex, Time(1));
    const Unrolled step = unroll(graph, 1 + seed % 4);
    Random random(seed);
    Placement device;
    for ([[maybe_unused]] const OpId op : graph.ops())
      device.push_back(random.chance(0.5) ? kGpu0 : kGpu1);
    Placement of_step;
    for (const OpId op : step.graph.ops()) of_step.push_back(device[step.original[op]]);
    const Trace trace = simulate(CostModel(step.graph, cluster), {of_step, std::nullopt});
    CHECK(check_schedule(step.graph, cluster, trace.schedule, {.capacities = false}).empty());
    const auto peaks = checked_peaks(step.graph, cluster, trace.schedule);
    for (const DeviceId gpu : {kGpu0, kGpu1}) CHECK(peaks[gpu].bytes == trace.devices[gpu].peak);
    Time busy, expected;
    for (const DeviceId gpu : {kGpu0, kGpu1}) busy += trace.devices[gpu].busy;
    const CostModel costs(graph, cluster);
    const IdVector<OpId, bool> once = once_per_step(graph);
    for (const OpId op : graph.ops())
      expected += *costs.compute_time(op, kGpu0) * (once[op] ? 1 : step.micro_batches);
    CHECK(busy == expected);
  }
}

}  // namespace
}  // namespace baechi::testing
