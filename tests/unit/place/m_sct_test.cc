// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <optional>
#include <variant>

#include "baechi/cost/cost_model.h"
#include "baechi/graph/op_graph_builder.h"
#include "baechi/place/list/favorite_child.h"
#include "baechi/place/placer.h"
#include "baechi/simulate/execution_simulator.h"
#include "property/effort.h"
#include "unit/graphs.h"
#include "unit/place/naive_scan.h"
#include "unit/place/random_instances.h"

namespace baechi {
namespace {

Time makespan(const OpGraph& graph, const Cluster& cluster) {
  const CostModel costs(graph, cluster);
  return simulate(costs, std::get<PlacedGraph>(place_m_sct(costs, {}))).schedule.makespan;
}

TEST_CASE("m-sct: figure 1 takes 8 time units, and 9 when a device holds only 4 memory units") {
  const OpGraph graph = testing::figure_1();
  CHECK(makespan(graph, testing::unit_latency_cluster(2, Bytes(100))) == Time(8));
  CHECK(makespan(graph, testing::unit_latency_cluster(2, Bytes(4))) == Time(9));
}

//   a(1) --+--> x(5)
//          +--> f(10)       both a and g end at 1, so f's inputs meet at 2 on either device
//   g(1) --+
//          +--> y(5)
//
// m-ETF fills the unit before that with x and y, and f waits for them. The favorite parent of f
// keeps its device awake.
TEST_CASE("m-sct: an awake device waits for the favorite child of its last operator") {
  OpGraphBuilder builder;
  const auto add = [&](const char* name, std::int64_t time) {
    return testing::timed(builder, {.name = name}, Time(time));
  };
  const OpId a = add("a", 1), g = add("g", 1), f = add("f", 10), x = add("x", 5), y = add("y", 5);
  const TensorId from_a = builder.add_output(a, Bytes(0)), from_g = builder.add_output(g, Bytes(0));
  builder.connect(from_a, f);
  builder.connect(from_a, x);
  builder.connect(from_g, f);
  builder.connect(from_g, y);
  const OpGraph graph = std::move(builder).build();
  const Cluster cluster = testing::unit_latency_cluster(2, Bytes(100));
  const CostModel costs(graph, cluster);

  const FavoriteChildren favorites = find_favorite_children(costs, {});
  REQUIRE(favorites.parent[f].has_value());
  const auto step_time = [&](const PlaceResult& result) {
    return simulate(costs, std::get<PlacedGraph>(result)).schedule.makespan;
  };
  CHECK(step_time(place_m_etf(costs, {})) == Time(16));
  CHECK(step_time(place_m_sct(costs, {})) == Time(12));
}

TEST_CASE("m-sct: every decision equals that of a scan of all pairs") {
  for (const testing::RandomInstances& kind : testing::kRandomInstances) {
    CAPTURE(kind.name);
    std::uint64_t placed = 0;
    for (std::uint64_t seed = 0; seed < testing::effort(1200, 10); ++seed) {
      CAPTURE(seed);
      const OpGraph graph = testing::random_dag(seed, kind.limits);
      const Cluster cluster = testing::instance_cluster(seed, kind);
      const CostModel costs(graph, cluster);
      PlaceOptions options = testing::instance_options(seed);
      const std::optional<Placement> home = testing::instance_home(seed, costs);
      if (home.has_value()) options.home = &*home;
      const FavoriteChildren favorites = find_favorite_children(costs, options);
      const PlaceResult fast = place_m_sct(costs, options);
      const PlaceResult naive = testing::naive_list_schedule(costs, options, &favorites.child);
      if (testing::check_same(fast, naive).has_value()) ++placed;
    }
    CHECK(placed > testing::effort(300, 10));
  }
}

TEST_CASE(
    "m-sct: on long runs of equal devices every decision equals that of a scan of all pairs") {
  std::uint64_t few = 0, many = 0;
  for (const testing::RandomInstances& kind : testing::kRandomInstances) {
    CAPTURE(kind.name);
    for (std::uint64_t seed = 0; seed < testing::effort(60, 12); ++seed) {
      CAPTURE(seed);
      const OpGraph graph = testing::random_dag(seed, testing::instance_limits(seed, kind));
      const Cluster cluster = testing::many_devices(seed, Bytes(kind.capacity));
      const CostModel costs(graph, cluster);
      const PlaceOptions options = testing::instance_options(seed);
      const FavoriteChildren favorites = find_favorite_children(costs, options);
      const PlaceResult fast = place_m_sct(costs, options);
      const PlaceResult naive = testing::naive_list_schedule(costs, options, &favorites.child);
      if (const auto used = testing::check_same(fast, naive)) ++(*used < 16 ? few : many);
    }
  }
  CHECK(few > testing::effort(100, 12));
  CHECK(many > testing::effort(50, 12));
}

}  // namespace
}  // namespace baechi
