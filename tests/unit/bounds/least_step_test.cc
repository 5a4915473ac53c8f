// SPDX-License-Identifier: Apache-2.0
#include "baechi/bounds/least_step.h"

#include <doctest/doctest.h>

#include <optional>
#include <utility>
#include <variant>

#include "baechi/graph/op_graph_builder.h"
#include "baechi/graph/unroll.h"
#include "baechi/place/placer.h"
#include "baechi/simulate/execution_simulator.h"
#include "unit/graphs.h"

namespace baechi {
namespace {

using testing::unit_latency_cluster;

TEST_CASE("least step: what shares a device, between the longest paths to and from it") {
  OpGraphBuilder builder("layers");
  const auto add = [&](const char* name, int time, bool per_step = false) {
    return testing::timed(builder, {.name = name, .backward = per_step, .per_step = per_step},
                          Time(time), kAnyKind);
  };
  const OpId before = add("before", 2), wide = add("wide", 5), again = add("again", 4),
             update = add("update", 3, true);
  builder.add_to_group(wide, "group");
  builder.add_to_group(again, "group");
  builder.add_control_edge(before, wide);
  builder.add_control_edge(wide, again);
  builder.add_control_edge(again, update);
  const OpGraph graph = std::move(builder).build();
  const Cluster two = unit_latency_cluster(2, Bytes(100)),
                one = unit_latency_cluster(1, Bytes(100));
  CHECK(least_step(CostModel(graph, two), 1) == Time(2 + 9 + 3));
  CHECK(least_step(CostModel(graph, two), 10) == Time(2 + 90 + 3));
  CHECK(least_step(CostModel(graph, one), 10) ==
        Time(20 + 90 + 3 - 1));  // less than it is, rounded
}

TEST_CASE("least step: is below every step that is simulated") {
  std::size_t near = 0;
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    CAPTURE(seed);
    const OpGraph graph = testing::random_dag(
        seed, {.max_ops = 8, .group_chance = 0.3, .cpu_chance = 0.7, .max_tensor_bytes = 1});
    const Cluster cluster = testing::random_cluster(seed);
    const std::optional<Time> least = least_step(CostModel(graph, cluster), 3);
    const Unrolled step = unroll(graph, 3);
    const CostModel costs(step.graph, cluster);
    const PlaceResult placed = place_m_etf(costs, {});
    if (!std::holds_alternative<PlacedGraph>(placed)) continue;
    REQUIRE(least.has_value());
    const Time makespan = simulate(costs, std::get<PlacedGraph>(placed)).schedule.makespan;
    CHECK(*least <= makespan);
    if (least->count() * 4 >= makespan.count() * 3) ++near;
  }
  CHECK(near > 50);
}

}  // namespace
}  // namespace baechi
