// SPDX-License-Identifier: Apache-2.0
// Bounds of steps of micro-batches against the exact optimum of the unrolled graph.
#include <doctest/doctest.h>

#include <optional>
#include <string>
#include <vector>

#include "baechi/bounds/lower_bounds.h"
#include "baechi/cost/cost_model.h"
#include "baechi/graph/unroll.h"
#include "property/effort.h"
#include "unit/brute_force.h"
#include "unit/graphs.h"
#include "unit/simulate/small_clusters.h"

namespace baechi::testing {
namespace {

std::optional<Time> bound_of(const std::vector<NamedBound>& found, const std::string& name) {
  for (const NamedBound& bound : found)
    if (bound.name == name) return bound.value;
  return std::nullopt;
}

// a(4) -> b(4) -> c(4), three times: one device waits 4 before its work, or one after it.
TEST_CASE("fill and drain: a pipeline waits beside its work") {
  const OpGraph graph = chain({Time(4), Time(4), Time(4)}, Bytes(0));
  const Cluster cluster = byte_per_ns(2, CommunicationMode::kParallel);
  const Unrolled step = unroll(graph, 3);
  const auto found = lower_bounds(CostModel(step.graph, cluster));
  CHECK(bound_of(found, "fill and drain") == Time((9 * 4 + 4 + 4) / 2));
  CHECK(bound_of(found, "load") == Time(9 * 4 / 2));
}

TEST_CASE("fill and drain: no bound of a step exceeds its exact optimum") {
  std::size_t solved = 0, told = 0;
  for (std::uint64_t seed = 0; seed < effort(1500); ++seed) {
    CAPTURE(seed);
    const OpGraph graph = random_dag(seed, {.min_ops = 2,
                                            .max_ops = 3,
                                            .edge_chance = 0.7,
                                            .group_chance = seed % 4 == 0 ? 0.4 : 0.0,
                                            .cpu_chance = 0.5,
                                            .max_time = 9});
    const Unrolled step = unroll(graph, graph.num_ops() == 2 ? 3 : 2);
    if (step.graph.num_ops() > 7) continue;
    const Cluster cluster = random_cluster(seed);
    const std::optional<Optimum> best = optimal_makespan(step.graph, cluster);
    if (!best.has_value()) continue;
    ++solved;
    const auto found = lower_bounds(CostModel(step.graph, cluster));
    for (const NamedBound& bound : found) {
      CAPTURE(bound.name);
      REQUIRE(bound.value.count() <= best->makespan.count());
    }
    if (bound_of(found, "fill and drain").has_value()) ++told;
  }
  CHECK(solved > effort(800));
  CHECK(told > effort(20));
}

}  // namespace
}  // namespace baechi::testing
