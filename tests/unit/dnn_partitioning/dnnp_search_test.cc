// SPDX-License-Identifier: Apache-2.0
#include "baechi/dnn_partitioning/dnnp_search.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "baechi/base/random.h"
#include "baechi/graph/op_graph_builder.h"
#include "baechi/place/allowed_devices.h"
#include "unit/graphs.h"

namespace baechi {
namespace {

// Random graphs for accelerators, some operators also or only for the CPU.
OpGraph draw_graph(std::uint64_t seed, std::size_t num_ops) {
  Random random(seed);
  OpGraphBuilder builder;
  for (std::size_t i = 0; i < num_ops; ++i) {
    const OpId op = builder.add_operator({.name = "op" + std::to_string(i),
                                          .permanent = Bytes(random.between(0, 30)),
                                          .backward = random.chance(0.2)});
    const std::int64_t time = random.between(1, 20);
    if (random.chance(0.9)) builder.set_time(op, "accelerator", Time(time));
    builder.set_time(op, "cpu", Time(5 * time));
    builder.add_output(op, Bytes(random.between(0, 15)));
    if (random.chance(0.3)) builder.add_to_group(op, "g" + std::to_string(random.below(3)));
    for (std::size_t parent = i > 4 ? i - 4 : 0; parent < i; ++parent)
      if (random.chance(0.4)) builder.connect(*builder.output(OpId(parent), 0), op);
  }
  return std::move(builder).build();
}

Cluster draw_cluster(std::uint64_t seed) {
  Random random(seed ^ 0x77);
  ClusterSpec spec = uniform_cluster({.count = 2 + random.below(2),
                                      .capacity = Bytes(random.between(60, 150)),
                                      .latency = Time(random.between(0, 3)),
                                      .bandwidth = Bandwidth(1'000'000'000)});
  for (Device& device : spec.devices) device.kind = "accelerator";
  if (random.chance(0.3)) spec.devices[0].speed = Speed(500'000);
  if (random.chance(0.7))
    spec.devices.push_back({"cpu:0", "cpu", Bytes(1'000'000), "localhost", kFullSpeed});
  return Cluster(std::move(spec));
}

// The least value of all placements; for latency, of those in which an accelerator is one call.
std::optional<Time> best_of_all(const CostModel& costs, DnnpObjective objective) {
  const OpGraph& graph = costs.graph();
  const AllowedDevices allowed(costs);
  std::optional<Time> best;
  Placement placement(graph.num_ops(), DeviceId(0));
  const auto assign = [&](const auto& self, std::size_t i) -> void {
    if (i == graph.num_ops()) {
      const DnnpScore score = dnnp_score(costs, placement, objective);
      if (!score.fits || !score.value.has_value()) return;
      std::vector<DeviceId> called;
      for (const DnnpCall& call : score.calls) called.push_back(call.device);
      if (std::ranges::adjacent_find(called) != called.end()) return;
      best = std::min(best.value_or(*score.value), *score.value);
      return;
    }
    for (const DeviceId device : costs.cluster().devices()) {
      const auto group = graph[OpId(i)].group;
      if (!allowed(OpId(i), device) ||
          (group.has_value() && graph.members(*group).front().index() < i &&
           placement[graph.members(*group).front()] != device))
        continue;
      placement[OpId(i)] = device;
      self(self, i + 1);
    }
  };
  assign(assign, 0);
  return best;
}

TEST_CASE("dnnp placers: keep the rules, and reach the best of all placements nearly always") {
  std::size_t compared = 0, optimal = 0;
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    CAPTURE(seed);
    const OpGraph graph = draw_graph(seed, 6);
    const Cluster cluster = draw_cluster(seed);
    const CostModel costs(graph, cluster);
    for (const DnnpObjectiveEntry& entry : dnnp_objectives()) {
      CAPTURE(entry.name);
      const auto best = best_of_all(costs, entry.objective);
      const auto result = place_for(costs, entry.objective, {.budget = 0.002});
      const auto* found = std::get_if<DnnpPlacement>(&result);
      if (found == nullptr) continue;
      REQUIRE(best.has_value());
      const DnnpScore score = dnnp_score(costs, found->device, entry.objective);
      CHECK(score.value == found->value);
      CHECK(score.fits);
      CHECK(found->value <= found->segments);
      CHECK(found->value >= *best);
      CHECK(found->bound.has_value() == (entry.objective == DnnpObjective::kMaxLoad));
      CHECK(found->bound.value_or(*best) <= *best);
      const auto again = place_for(costs, entry.objective, {.budget = 0.002});
      CHECK(std::get<DnnpPlacement>(again).device == found->device);
      ++compared;
      if (found->value == *best) ++optimal;
    }
  }
  CHECK(compared > 80);
  CHECK(optimal * 10 > compared * 9);
}

// Four equal operators in a row that send nothing: two accelerators take two each.
TEST_CASE("dnnp placers: a pipeline of equal operators is cut in the middle") {
  const OpGraph graph = testing::chain(std::vector<Time>(4, Time(5)), Bytes(0), Bytes(1));
  const Cluster cluster(uniform_cluster({.count = 2, .capacity = Bytes(4), .latency = Time(0)}));
  const auto result =
      place_for(CostModel(graph, cluster), DnnpObjective::kMaxLoad, {.budget = 0.001});
  CHECK(std::get<DnnpPlacement>(result).value == Time(10));
  CHECK(std::get<DnnpPlacement>(result).segments == Time(10));
  const Cluster small(uniform_cluster({.count = 2, .capacity = Bytes(1), .latency = Time(0)}));
  CHECK(std::holds_alternative<DoesNotFit>(
      place_for(CostModel(graph, small), DnnpObjective::kMaxLoad, {.budget = 0.001})));
}

}  // namespace
}  // namespace baechi
