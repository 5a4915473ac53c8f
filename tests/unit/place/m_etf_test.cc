// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <variant>

#include "baechi/cost/cost_model.h"
#include "baechi/place/allowed_devices.h"
#include "baechi/place/cluster_state.h"
#include "baechi/place/placer.h"
#include "baechi/simulate/execution_simulator.h"
#include "unit/graphs.h"
#include "unit/place/naive_scan.h"
#include "unit/place/random_instances.h"

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

TEST_CASE("m-etf: every decision equals that of a scan of all pairs") {
  for (const testing::RandomInstances& kind : testing::kRandomInstances) {
    CAPTURE(kind.name);
    int placed = 0, misfits = 0;
    for (std::uint64_t seed = 0; seed < 1200; ++seed) {
      CAPTURE(seed);
      const OpGraph graph = testing::random_dag(seed, kind.limits);
      const Cluster cluster = testing::instance_cluster(seed, kind);
      const CostModel costs(graph, cluster);
      const PlaceOptions options = testing::instance_options(seed);
      const PlaceResult fast = place_m_etf(costs, options);
      const PlaceResult naive = testing::naive_list_schedule(costs, options);
      REQUIRE(fast.index() == naive.index());
      if (const auto* plan = std::get_if<PlacedGraph>(&fast)) {
        ++placed;
        REQUIRE(plan->device == std::get<PlacedGraph>(naive).device);
        REQUIRE(plan->order == std::get<PlacedGraph>(naive).order);
      } else {
        ++misfits;
        REQUIRE(std::get<DoesNotFit>(fast).op == std::get<DoesNotFit>(naive).op);
        REQUIRE(std::get<DoesNotFit>(fast).short_by == std::get<DoesNotFit>(naive).short_by);
      }
    }
    CHECK(placed > 400);
    CHECK((kind.capacity == testing::kAmple) == (misfits == 0));
  }
}

}  // namespace
}  // namespace baechi
