// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <optional>
#include <string>
#include <string_view>
#include <variant>

#include "baechi/cost/cost_model.h"
#include "baechi/graph/op_graph_builder.h"
#include "baechi/place/list/suppliers.h"
#include "baechi/place/placer.h"
#include "baechi/simulate/execution_simulator.h"
#include "property/effort.h"
#include "unit/graphs.h"
#include "unit/place/naive_scan.h"
#include "unit/place/random_instances.h"
#include "unit/simulate/small_clusters.h"

namespace baechi {
namespace {

PlaceResult place(const OpGraph& graph, const Cluster& cluster) {
  return place_m_etf(CostModel(graph, cluster), {});
}

Time makespan(const OpGraph& graph, const Cluster& cluster, const PlaceResult& result) {
  return simulate(CostModel(graph, cluster), std::get<PlacedGraph>(result)).schedule.makespan;
}

TEST_CASE("m-etf: figure 1 takes 8 time units, and 9 when a device holds only 4 memory units") {
  const OpGraph graph = testing::figure_1();
  const Cluster roomy = testing::unit_latency_cluster(2, Bytes(100));
  const Cluster tight = testing::unit_latency_cluster(2, Bytes(4));
  CHECK(makespan(graph, roomy, place(graph, roomy)) == Time(8));
  CHECK(makespan(graph, tight, place(graph, tight)) == Time(9));
}

//   src(1) --+--> short(2)
//            +--> long(2) --> tail(9)
TEST_CASE(
    "m-etf: of operators that can start together, the one with the longest way to go is first") {
  OpGraphBuilder builder;
  const auto add = [&](const char* name, std::int64_t time) {
    return testing::timed(builder, {.name = name}, Time(time));
  };
  const OpId src = add("src", 1), brief = add("short", 2), way = add("long", 2),
             tail = add("tail", 9);
  const TensorId out = builder.add_output(src, Bytes(0));
  builder.connect(out, brief);
  builder.connect(out, way);
  builder.connect(builder.add_output(way, Bytes(0)), tail);
  const OpGraph graph = std::move(builder).build();
  const Cluster cluster = testing::unit_latency_cluster(2, Bytes(100));
  CHECK(makespan(graph, cluster, place(graph, cluster)) == Time(12));
}

// Two towers x -> y, each with weights of its own: a weight is cheap to read and dear to send, and
// goes to the tower that reads it, not to whatever device is idle.
//
//   w1(1) ===> y1(100)     w2(1) ===> y2(100)
//   x1(90) --^             x2(90) --^
TEST_CASE("m-etf: a supplier is placed with the first operator that needs it") {
  OpGraphBuilder builder;
  for (const char* tower : {"1", "2"}) {
    const auto add = [&](const char* name, std::int64_t time) {
      return testing::timed(builder, {.name = std::string(name) + tower}, Time(time));
    };
    const OpId w = add("w", 1), x = add("x", 90), y = add("y", 100);
    builder.connect(builder.add_output(w, Bytes(500)), y);
    builder.connect(builder.add_output(x, Bytes(0)), y);
  }
  const OpGraph graph = std::move(builder).build();
  const Cluster cluster =
      testing::equal_devices(2, Bytes(10'000), Time(10), Bandwidth(1'000'000'000));
  const CostModel costs(graph, cluster);
  const PlaceResult result = place_m_etf(costs, {});
  const Placement& device = std::get<PlacedGraph>(result).device;
  CHECK(device[OpId(0)] == device[OpId(2)]);
  CHECK(device[OpId(3)] == device[OpId(5)]);
  CHECK(simulate(costs, std::get<PlacedGraph>(result)).schedule.makespan == Time(191));

  PlaceOptions literal;
  literal.call_suppliers = false;  // w1 and w2 go first, to one device each: one y or none moves
  CHECK(find_suppliers(costs)[OpId(0)]);
  CHECK_FALSE(find_suppliers(costs)[OpId(1)]);
  CHECK(std::holds_alternative<PlacedGraph>(place_m_etf(costs, literal)));
}

//   a(3)  b(3)  c(3) --> last(5), on gpu:0 only      bytes; gpu:0 has 10, gpu:1 has 30
TEST_CASE("m-etf: headroom is left for operators that have no other device") {
  OpGraphBuilder builder;
  const auto add = [&](const char* name, std::int64_t bytes, std::optional<std::string_view> pin) {
    return testing::timed(builder, {.name = name, .permanent = Bytes(bytes), .pin = pin}, Time(10));
  };
  add("a", 3, {});
  add("b", 3, {});
  const OpId c = add("c", 3, {}), last = add("last", 5, "gpu:0");
  builder.add_control_edge(c, last);
  const OpGraph graph = std::move(builder).build();
  ClusterSpec spec = testing::equal_devices(2, Bytes(10), Time(1)).spec();
  spec.devices[1].capacity = Bytes(30);
  const Cluster cluster(std::move(spec));
  const CostModel costs(graph, cluster);

  const PlaceResult without = place_m_etf(costs, {});
  REQUIRE(std::holds_alternative<DoesNotFit>(without));
  CHECK(std::get<DoesNotFit>(without).op == last);
  PlaceOptions careful;
  careful.headroom = 0.5;
  const PlaceResult with = place_m_etf(costs, careful);
  REQUIRE(std::holds_alternative<PlacedGraph>(with));
  CHECK(std::get<PlacedGraph>(with).device[last] == DeviceId(0));
}

TEST_CASE("m-etf: operators go home while there is room") {
  const OpGraph graph = testing::figure_1();
  const Cluster cluster = testing::unit_latency_cluster(3, Bytes(100));
  const CostModel costs(graph, cluster);
  const Placement home(graph.num_ops(), DeviceId(2));
  PlaceOptions options;
  options.home = &home;
  CHECK(std::get<PlacedGraph>(place_m_etf(costs, options)).device == home);

  const Cluster tight = testing::unit_latency_cluster(3, Bytes(4));
  const PlaceResult spilled = place_m_etf(CostModel(graph, tight), options);
  REQUIRE(std::holds_alternative<PlacedGraph>(spilled));
  CHECK(std::get<PlacedGraph>(spilled).device != home);
}

TEST_CASE("m-etf: every decision equals that of a scan of all pairs") {
  for (const testing::RandomInstances& kind : testing::kRandomInstances) {
    CAPTURE(kind.name);
    std::uint64_t placed = 0, misfits = 0;
    for (std::uint64_t seed = 0; seed < testing::effort(1200, 10); ++seed) {
      CAPTURE(seed);
      const OpGraph graph = testing::random_dag(seed, kind.limits);
      const Cluster cluster = testing::instance_cluster(seed, kind);
      const CostModel costs(graph, cluster);
      PlaceOptions options = testing::instance_options(seed);
      const std::optional<Placement> home = testing::instance_home(seed, costs);
      if (home.has_value()) options.home = &*home;
      const PlaceResult fast = place_m_etf(costs, options);
      const PlaceResult naive = testing::naive_list_schedule(costs, options);
      ++(testing::check_same(fast, naive).has_value() ? placed : misfits);
    }
    CHECK(placed > testing::effort(400, 10));
    CHECK((kind.capacity == testing::kAmple) == (misfits == 0));
  }
}

TEST_CASE(
    "m-etf: on long runs of equal devices every decision equals that of a scan of all pairs") {
  std::uint64_t few = 0, many = 0, misfits = 0;
  for (const testing::RandomInstances& kind : testing::kRandomInstances) {
    CAPTURE(kind.name);
    for (std::uint64_t seed = 0; seed < testing::effort(60, 6); ++seed) {
      CAPTURE(seed);
      const OpGraph graph = testing::random_dag(seed, testing::instance_limits(seed, kind));
      const Cluster cluster = testing::many_devices(seed, Bytes(kind.capacity));
      const CostModel costs(graph, cluster);
      const PlaceOptions options = testing::instance_options(seed);
      const PlaceResult fast = place_m_etf(costs, options);
      const PlaceResult naive = testing::naive_list_schedule(costs, options);
      const auto used = testing::check_same(fast, naive);
      ++(!used.has_value() ? misfits : *used < 16 ? few : many);
    }
  }
  CHECK(few > testing::effort(100, 6));
  CHECK(many > testing::effort(50, 6));
  CHECK(misfits > testing::effort(10, 12));
}

}  // namespace
}  // namespace baechi
