// SPDX-License-Identifier: Apache-2.0
#include "baechi/place/exact/exact.h"

#include <doctest/doctest.h>

#include <optional>
#include <set>

#include "baechi/simulate/execution_simulator.h"
#include "baechi/verify/check_schedule.h"
#include "unit/brute_force.h"
#include "unit/graphs.h"
#include "unit/regimes.h"
#include "unit/simulate/small_clusters.h"

namespace baechi {
namespace {

// Whether the plan keeps every rule, and takes as long as it says.
void check_plan(const OpGraph& graph, const Cluster& cluster, const ExactResult& result) {
  const Trace trace = simulate(CostModel(graph, cluster), *result.placed);
  CHECK(trace.schedule.makespan == result.makespan);
  CHECK(check_schedule(graph, cluster, trace.schedule) == std::vector<std::string>{});
}

TEST_CASE("exact: figure 1 takes 8 time units, and 9 when a device holds only 4 memory units") {
  const OpGraph graph = testing::figure_1();
  const auto solve = [&](std::size_t count, Bytes capacity) {
    const Cluster cluster = testing::unit_latency_cluster(count, capacity);
    return solve_exactly(CostModel(graph, cluster), {});
  };
  CHECK(solve(2, Bytes(100)).makespan == Time(8));
  CHECK(solve(2, Bytes(4)).makespan == Time(9));
  CHECK(solve(2, Bytes(4)).bound == Time(9));
  CHECK(solve(2, Bytes(3)).complete);
  CHECK_FALSE(solve(2, Bytes(3)).placed.has_value());
  CHECK(solve(3, Bytes(3)).placed.has_value());
}

TEST_CASE("exact: equals trying everything on 1,500 instances of every kind") {
  std::size_t feasible = 0, infeasible = 0;
  std::set<CommunicationMode> modes;
  for (const testing::Regime& regime : testing::regimes()) {
    CAPTURE(regime.name);
    for (std::uint64_t seed = 0; seed < 100; ++seed) {
      CAPTURE(seed);
      const auto [graph, cluster] = testing::instance_of(regime, seed);
      const std::optional<testing::Optimum> best = testing::optimal_makespan(graph, cluster);
      const ExactResult found = solve_exactly(CostModel(graph, cluster), {});
      REQUIRE(found.complete);
      REQUIRE(found.placed.has_value() == best.has_value());
      (best.has_value() ? feasible : infeasible) += 1;
      modes.insert(cluster.communication());
      if (!best.has_value()) continue;
      CHECK(found.makespan == best->makespan);
      CHECK(found.bound == best->makespan);
      check_plan(graph, cluster, found);
    }
  }
  CHECK(feasible > 1200);
  CHECK(infeasible > 100);
  CHECK(modes.size() == 3);
}

// Found by a search that never waited for an operator while it could run another one: it took 37.
// What runs meanwhile may send something that holds up a transfer on the critical path.
TEST_CASE("exact: waiting on purpose pays where transfers queue") {
  const OpGraph graph = testing::random_dag(
      759, {.min_ops = 7, .max_ops = 7, .edge_chance = 0.3, .max_tensor_bytes = 20});
  const Cluster cluster = testing::equal_devices(
      2, Bytes(100'000), Time(2), Bandwidth(1'000'000'000), CommunicationMode::kSequential);
  CHECK(testing::optimal_makespan(graph, cluster)->makespan == Time(35));
  CHECK(solve_exactly(CostModel(graph, cluster), {}).makespan == Time(35));
}

// Stopped at any moment, it has a plan as good as its start and a bound that is none too high.
TEST_CASE("exact: what it says when it is stopped holds") {
  std::size_t open = 0;
  for (const testing::Regime& regime : testing::regimes()) {
    CAPTURE(regime.name);
    for (std::uint64_t seed = 100; seed < 110; ++seed) {
      CAPTURE(seed);
      const auto [graph, cluster] = testing::instance_of(regime, seed);
      const CostModel costs(graph, cluster);
      const ExactResult best = solve_exactly(costs, {});
      if (!best.placed.has_value()) continue;
      for (std::int64_t work = 0; work < 1000; work += 100) {
        CAPTURE(work);
        const ExactResult found = solve_exactly(costs, {.work = work});
        CHECK(found.bound <= best.makespan);
        if (found.placed.has_value()) CHECK(found.makespan >= best.makespan);
        if (found.complete) CHECK(found.makespan == best.makespan);
        open += found.complete ? 0 : 1;
      }
    }
  }
  CHECK(open > 100);
}

}  // namespace
}  // namespace baechi
