// SPDX-License-Identifier: Apache-2.0
// The theorems against the placers and the exact optimum, where their assumptions hold.
#include "baechi/bounds/theorems.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <optional>
#include <utility>
#include <variant>

#include "baechi/base/random.h"
#include "baechi/graph/op_graph_builder.h"
#include "baechi/place/placer.h"
#include "baechi/simulate/execution_simulator.h"
#include "property/effort.h"
#include "unit/brute_force.h"
#include "unit/graphs.h"

namespace baechi {
namespace {

using testing::effort;
using testing::RandomDag;

struct Instance {
  OpGraph graph;
  Cluster cluster;
};

// Equal devices with parallel communication. Small communication: c <= k everywhere.
Instance draw(std::uint64_t seed, bool small_communication) {
  Random random(seed ^ 0x7e0);
  RandomDag limits;
  limits.min_ops = 3;
  limits.max_ops = 7;
  limits.edge_chance = 0.15 + random.unit() * 0.4;
  limits.max_time = 12;
  limits.max_permanent_bytes = random.chance(0.5) ? 0 : 20;
  OpGraph graph = testing::random_dag(seed, limits);
  std::int64_t shortest = 1'000, all = 0, most = 0;
  for (const OpId op : graph.ops()) {
    std::int64_t d =
        (graph[op].permanent + graph[op].temporary).count() + graph.output_bytes(op).count();
    for (const Edge& edge : graph.in_edges(op))
      if (edge.tensor.has_value()) d += graph.size(*edge.tensor).count();
    all += d;
    most = std::max(most, d);
    shortest = std::min(shortest, graph.times(KindId(0))[op]->count());
  }
  UniformCluster uniform;
  uniform.count = 2 + random.below(2);
  uniform.capacity = Bytes(random.chance(0.3) ? all + 1 : random.between(most + 1, all + 1));
  uniform.latency = Time(small_communication ? random.between(0, shortest) : random.between(0, 30));
  uniform.communication = CommunicationMode::kParallel;
  return {std::move(graph), Cluster(uniform_cluster(uniform))};
}

// The optimum with this latency and without memory limits.
double optimum(const OpGraph& graph, const Cluster& cluster, Time latency) {
  UniformCluster ideal;
  ideal.count = cluster.num_devices();
  ideal.capacity = Bytes(1'000'000'000);
  ideal.latency = latency;
  ideal.communication = CommunicationMode::kParallel;
  const Cluster without_limits(uniform_cluster(ideal));
  return static_cast<double>(testing::optimal_makespan(graph, without_limits)->makespan.count());
}

std::optional<double> makespan(Placer place, const CostModel& costs, const PlaceOptions& options) {
  const PlaceResult result = place(costs, options);
  const auto* placed = std::get_if<PlacedGraph>(&result);
  if (placed == nullptr) return std::nullopt;
  return static_cast<double>(simulate(costs, *placed).schedule.makespan.count());
}

TEST_CASE("theorems: m-ETF keeps the bound of Appendix A, with ample memory and with little") {
  std::size_t ample = 0, scarce = 0;
  for (std::uint64_t seed = 0; seed < effort(1500); ++seed) {
    CAPTURE(seed);
    const auto [graph, cluster] = draw(seed, /*small_communication=*/seed % 2 == 0);
    const CostModel costs(graph, cluster);
    REQUIRE(theorem_machine(costs));
    const MemorySufficiency memory = memory_sufficiency(costs);
    if (memory.R == 0) continue;
    const double w = optimum(graph, cluster, Time(0));
    const auto C = static_cast<double>(longest_chain_communication(costs).count());
    const std::optional<double> m_etf = makespan(place_m_etf, costs, {});
    const std::optional<double> m_sct = makespan(place_m_sct, costs, {});
    REQUIRE(m_etf.has_value());
    REQUIRE(*m_etf <= m_etf_bound(memory.n, memory.R, w, C) + 1e-9);
    // The argument holds for m-SCT as well: an operator that an awake device refuses is not urgent,
    // so an input of it is still on its way somewhere.
    REQUIRE(m_sct.has_value());
    REQUIRE(*m_sct <= m_etf_bound(memory.n, memory.R, w, C) + 1e-9);
    ++(memory.R == memory.n ? ample : scarce);
  }
  CHECK(ample > effort(300));
  CHECK(scarce > effort(300));
}

TEST_CASE("theorems: under the SCT assumption m-SCT keeps the bound of Appendix B") {
  std::size_t tried = 0;
  for (std::uint64_t seed = 0; seed < effort(2500); ++seed) {
    CAPTURE(seed);
    const auto [graph, cluster] = draw(seed, /*small_communication=*/true);
    const CostModel costs(graph, cluster);
    const MemorySufficiency memory = memory_sufficiency(costs);
    if (!sct_assumption_holds(costs) || memory.R == 0) continue;
    const double w = optimum(graph, cluster, cluster.link(DeviceId(0), DeviceId(1)).latency);
    const double r = rho(costs).value_or(1.0);
    for (const FavoriteMethod favorites : {FavoriteMethod::kMatching, FavoriteMethod::kLpExact}) {
      PlaceOptions options;
      options.favorites = favorites;
      const std::optional<double> m_sct = makespan(place_m_sct, costs, options);
      REQUIRE(m_sct.has_value());
      REQUIRE(*m_sct <= m_sct_bound(memory.n, memory.R, r, w) + 1e-9);
      REQUIRE(*m_sct <= any_favorites_bound(memory.n, memory.R, r, w) + 1e-9);
    }
    ++tried;
  }
  CHECK(tried > effort(1000));
}

}  // namespace
}  // namespace baechi
