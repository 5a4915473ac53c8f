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

namespace baechi {
namespace {

using testing::random_cluster;
using testing::random_dag;

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

constexpr std::int64_t kAmple = 1'000'000;

struct Kind {  // of random instance
  const char* name;
  testing::RandomDag limits;
  std::int64_t capacity;
};

const Kind kKinds[] = {
    {"plain", {.max_ops = 25}, kAmple},
    {"wide", {.min_ops = 20, .max_ops = 40, .edge_chance = 0.06}, kAmple},
    {"long transfers",
     {.max_ops = 25, .edge_chance = 0.15, .max_time = 4, .max_tensor_bytes = 60},
     kAmple},
    {"equal times",
     {.max_ops = 25, .edge_chance = 0.1, .max_time = 1, .max_tensor_bytes = 1},
     kAmple},
    {"groups and pins",
     {.max_ops = 25,
      .edge_chance = 0.15,
      .group_chance = 0.6,
      .backward_chance = 0.3,
      .pin_chance = 0.05,
      .cpu_chance = 0.8},
     kAmple},
    {"tight", {.max_ops = 20, .group_chance = 0.4, .cpu_chance = 0.9}, 90},
    {"tighter",
     {.max_ops = 20,
      .edge_chance = 0.1,
      .group_chance = 0.2,
      .cpu_chance = 0.9,
      .max_permanent_bytes = 2},
     30},
    {"tight, retained",
     {.max_ops = 20, .backward_chance = 0.4, .cpu_chance = 0.9, .memory_mode = MemoryMode::kRetain},
     110},
};

// Classes of several devices; random_cluster's are mostly alone in theirs.
Cluster equal_devices(std::uint64_t seed, Bytes capacity) {
  ClusterSpec spec = uniform_cluster({.count = 1 + seed / 2 % 5,
                                      .capacity = capacity,
                                      .latency = Time(static_cast<std::int64_t>(seed % 4)),
                                      .bandwidth = Bandwidth(1'000'000'000),
                                      .communication = static_cast<CommunicationMode>(seed % 3)});
  if (seed % 5 == 0) spec.links[0].channels = {"bus"};
  return Cluster(std::move(spec));
}

TEST_CASE("m-etf: every decision equals that of a scan of all pairs") {
  for (const Kind& kind : kKinds) {
    CAPTURE(kind.name);
    int placed = 0, misfits = 0;
    for (std::uint64_t seed = 0; seed < 1200; ++seed) {
      CAPTURE(seed);
      const OpGraph graph = random_dag(seed, kind.limits);
      const Cluster cluster = seed % 2 == 0 ? random_cluster(seed * 7 + 1, Bytes(kind.capacity))
                                            : equal_devices(seed, Bytes(kind.capacity));
      const CostModel costs(graph, cluster);
      PlaceOptions options;
      if (seed % 3 == 2) options.memory = MemoryPolicy::kReserve;
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
    CHECK((kind.capacity == kAmple) == (misfits == 0));
  }
}

}  // namespace
}  // namespace baechi
