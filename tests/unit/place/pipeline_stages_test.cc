// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <algorithm>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "baechi/generate/generate.h"
#include "baechi/graph/unroll.h"
#include "baechi/place/pipeline/blocks.h"
#include "baechi/place/pipeline/division.h"
#include "baechi/place/pipeline/expand.h"
#include "baechi/place/pipeline/named.h"
#include "baechi/place/pipeline/play.h"
#include "baechi/place/pipeline/rules.h"
#include "baechi/place/pipeline/stages.h"
#include "baechi/place/topological_sequences.h"
#include "baechi/simulate/simulator.h"
#include "unit/place/pipeline_graphs.h"
#include "unit/simulate/small_clusters.h"

namespace baechi::pipeline {
namespace {

using testing::training;

const std::vector<DeviceId> kBoth{DeviceId(0), DeviceId(1)};

Cluster two_devices(Bytes capacity, Speed second = kFullSpeed) {
  ClusterSpec spec = testing::equal_devices(2, capacity, Time(0)).spec();
  spec.devices[1].speed = second;
  return Cluster(std::move(spec));
}

std::vector<std::ptrdiff_t> blocks_per_stage(const Division& division) {
  std::vector<std::ptrdiff_t> counts;
  for (const StageId stage : division.device.keys())
    counts.push_back(std::count(division.stage_of.begin(), division.stage_of.end(), stage));
  return counts;
}

// Ten layers; the second device takes four times as long, so it gets two.
TEST_CASE("pipeline division: a slow device gets few layers, wherever it stands") {
  const OpGraph graph = training({.forward = std::vector<std::int64_t>(10, 4)});
  const Cluster cluster = two_devices(Bytes(1'000'000), Speed(250'000));
  const CostModel costs(graph, cluster);
  const Blocks blocks(costs, depth_first_sequence(graph), 100);
  REQUIRE(blocks.size() == 10);
  const RunCosts runs(blocks);
  const DivisionGoal goal{.micro_batches = 8, .most_begun = 2};
  CHECK(blocks_per_stage(*divide(runs, kBoth, goal)) == std::vector<std::ptrdiff_t>{8, 2});
  const std::vector<DeviceId> turned{DeviceId(1), DeviceId(0)};
  CHECK(blocks_per_stage(*divide(runs, turned, goal)) == std::vector<std::ptrdiff_t>{2, 8});
}

// Eight layers keep 100 bytes each of every micro-batch; the first stage holds two of them and the
// second one, beside what arrives: with 850 bytes the first has 4 layers at the most, with less
// there is no division.
TEST_CASE("pipeline division: what stages keep of micro-batches in flight fits") {
  const OpGraph graph = training({.forward = std::vector<std::int64_t>(8, 10), .kept = Bytes(100)});
  const auto divided = [&](std::int64_t capacity) {
    const Cluster cluster = two_devices(Bytes(capacity));
    const CostModel costs(graph, cluster);
    const Blocks blocks(costs, depth_first_sequence(graph), 100);
    return divide(RunCosts(blocks), kBoth, {.micro_batches = 8, .most_begun = 2});
  };
  CHECK(blocks_per_stage(*divided(2'000)) == std::vector<std::ptrdiff_t>{4, 4});
  const auto tight = divided(1'100);
  REQUIRE(tight.has_value());
  CHECK(blocks_per_stage(*tight).front() <= 5);
  CHECK_FALSE(divided(400).has_value());
}

// Four equal layers on two devices, the backward pass one operator that takes twice as long.
TEST_CASE("pipeline rule: with as many micro-batches in flight as 1F1B, it is 1F1B") {
  const OpGraph graph = training({.forward = {10, 10, 10, 10}, .split = false, .kept = Bytes(100)});
  const Cluster cluster = two_devices(Bytes(1'000'000));
  const CostModel costs(graph, cluster);
  const Blocks blocks(costs, depth_first_sequence(graph), 100);
  const auto division = divide(RunCosts(blocks), kBoth, {.micro_batches = 6, .most_begun = 2});
  const StageGraph stages(blocks, *division, 6);
  REQUIRE(stages.depth() == IdVector<StageId, std::uint32_t>{2, 1});
  Player player(cluster);
  const IdVector<DeviceId, Bytes> room{Bytes(1'000'000), Bytes(1'000'000)};
  const Played& played = player.by_rule(stages, {.most_begun = stages.depth()}, room);
  REQUIRE(played.finished);
  CHECK(played.makespan == Time((6 + 1) * 60));
  const NamedSchedule& one_f_one_b = named_schedules()[1];
  REQUIRE(one_f_one_b.name == "1f1b");
  // (Behind the first stage's gradients nobody waits for the first layer's, so they may be late.)
  CHECK(played.actions[DeviceId(1)] == (*named_actions(one_f_one_b, stages, 2))[DeviceId(1)]);
}

TEST_CASE("pipeline rule: memory keeps micro-batches out, and the order never gets stuck") {
  const OpGraph graph = training({.forward = std::vector<std::int64_t>(8, 10), .kept = Bytes(100)});
  const Cluster cluster = two_devices(Bytes(1'000'000));
  const CostModel costs(graph, cluster);
  const Blocks blocks(costs, depth_first_sequence(graph), 100);
  // There and back in a V: what has begun on the way down needs room on the way up.
  const std::vector<DeviceId> back{DeviceId(0), DeviceId(1), DeviceId(1), DeviceId(0)};
  const auto division = divide(RunCosts(blocks), back, {.micro_batches = 8, .most_begun = 4});
  REQUIRE(division.has_value());
  const StageGraph stages(blocks, *division, 8);
  const Rule rule{.most_begun = IdVector<StageId, std::uint32_t>(4, 8)};
  Player player(cluster);
  const auto played = [&](std::int64_t room) {
    return player.by_rule(stages, rule, {Bytes(room), Bytes(room)});
  };
  const Played ample = played(1'000'000);
  REQUIRE(ample.finished);
  for (const std::int64_t room : {3'000, 2'500, 2'000}) {
    CAPTURE(room);
    const Played tight = played(room);
    REQUIRE(tight.finished);
    CHECK(tight.makespan >= ample.makespan);
    for (const Bytes peak : tight.peaks) CHECK(peak <= Bytes(room));
  }
  CHECK(*std::max_element(ample.peaks.begin(), ample.peaks.end()) > Bytes(3'000));
}

TEST_CASE("pipeline stages: a result that nobody reads is held of every micro-batch") {
  const OpGraph graph = training({.forward = {10, 10}, .results = Bytes(7)});
  const Cluster cluster = two_devices(Bytes(1'000));
  const CostModel costs(graph, cluster);
  const Blocks blocks(costs, depth_first_sequence(graph), 100);
  const auto division = divide(RunCosts(blocks), kBoth, {.micro_batches = 6, .most_begun = 2});
  const StageGraph stages(blocks, *division, 6);
  for (const DeviceId device : cluster.devices())
    CHECK(stages.per_step(device).held.count() == 6 * 7);
}

// Gradients replace activations while a stage goes back, and updates come when neither is there.
TEST_CASE("pipeline stages: devices hold about as much as the simulator says of all operators") {
  constexpr std::uint32_t kMicroBatches = 4;
  const std::pair<const char*, GenerateRequest> models[] = {
      {"gnmt", {.batch = 32, .length = 8}},
      {"llama", {.length = 256, .layers = 8, .training = true}},
      {"inception-v3", {.batch = 8}}};
  for (const auto& model : models) {
    const std::string name = model.first;
    CAPTURE(name);
    const OpGraph graph = generate_graph(name, model.second);
    const Unrolled step = unroll(graph, kMicroBatches);
    const Cluster cluster = testing::equal_devices(4, Bytes(1'000'000'000'000), Time(0));
    const CostModel costs(graph, cluster), of_step(step.graph, cluster);
    const Blocks blocks(costs, depth_first_sequence(graph), 192);
    const std::vector<DeviceId> order(cluster.devices().begin(), cluster.devices().end());
    const auto division =
        divide(RunCosts(blocks), order, {.micro_batches = kMicroBatches, .most_begun = 4});
    REQUIRE(division.has_value());
    const StageGraph stages(blocks, *division, kMicroBatches);
    IdVector<DeviceId, Bytes> room(4, Bytes(1'000'000'000'000));
    Player player(cluster);
    for (const Rule& rule : rules_for(stages)) {
      const Played& played = player.by_rule(stages, rule, room);
      Simulator simulator(of_step);
      const StepSummary& real = simulator.run(expand(blocks, *division, played.actions, step));
      for (const DeviceId device : cluster.devices()) {
        CHECK(played.peaks[device].count() >= real.peaks[device].count() * 95 / 100);
        CHECK(played.peaks[device].count() <= real.peaks[device].count() * 150 / 100);
      }
    }
  }
}

TEST_CASE("pipeline rules: from as few micro-batches in flight as 1F1B to all of them") {
  const OpGraph graph = training({.forward = {10, 10, 10, 10}});
  const Cluster cluster = testing::equal_devices(4, Bytes(1'000), Time(0));
  const CostModel costs(graph, cluster);
  const Blocks blocks(costs, depth_first_sequence(graph), 100);
  const std::vector<DeviceId> all(cluster.devices().begin(), cluster.devices().end());
  const auto division = divide(RunCosts(blocks), all, {.micro_batches = 16, .most_begun = 4});
  std::set<std::uint32_t> first, second;
  for (const Rule& rule : rules_for(StageGraph(blocks, *division, 16))) {
    first.insert(rule.most_begun[StageId(0)]);
    second.insert(rule.most_begun[StageId(1)]);
  }
  CHECK(first == std::set<std::uint32_t>{4, 5, 7, 16});
  CHECK(second == std::set<std::uint32_t>{3, 4, 5, 7, 16});
}

}  // namespace
}  // namespace baechi::pipeline
