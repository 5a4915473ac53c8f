// SPDX-License-Identifier: Apache-2.0
#include "baechi/optimize/optimize.h"

#include <doctest/doctest.h>

#include "baechi/base/error.h"
#include "unit/graphs.h"

namespace baechi {
namespace {

TEST_CASE("optimize: each level runs its passes, and their figures join up") {
  const OpGraph graph = testing::random_dag(
      7, {.min_ops = 30, .max_ops = 30, .group_chance = 0.3, .backward_chance = 0.4});
  const Cluster cluster = testing::unit_latency_cluster(3, Bytes(100'000));
  const CostModel costs(graph, cluster);
  const auto passes = [&](const char* level) {
    const Optimized optimized = optimize(costs, {.level = find_optimize_level(level)});
    std::string names;
    PassStatistics::Size size = size_of(graph);
    for (const PassStatistics& pass : optimized.passes) {
      names += (names.empty() ? "" : " ") + pass.pass;
      CHECK(pass.before == size);
      size = pass.after;
    }
    CHECK(size == size_of(optimized.graph));
    CHECK(optimized.expansion.num_original() == graph.num_ops());
    CHECK(optimized.expansion.num_small() == optimized.graph.num_ops());
    return names;
  };
  CHECK(passes("none") == "");
  CHECK(passes("colocate") == "colocate");
  CHECK(passes("coplace") == "colocate coplace");
  CHECK(passes("fuse") == "colocate coplace fuse");
  CHECK(passes("forward") == "colocate coplace forward");
  CHECK(passes("all") == "colocate coplace fuse forward");
  CHECK_THROWS_AS(find_optimize_level("most"), InputError);
}

TEST_CASE("optimize: gives the same graph every time") {
  for (std::uint64_t seed = 1; seed <= 50; ++seed) {
    CAPTURE(seed);
    const OpGraph graph = testing::random_dag(
        seed, {.max_ops = 30, .edge_chance = 0.15, .group_chance = 0.3, .backward_chance = 0.4});
    const Cluster cluster = testing::unit_latency_cluster(3, Bytes(100'000));
    const CostModel costs(graph, cluster);
    const Optimized a = optimize(costs), b = optimize(costs);
    CHECK(a.expansion == b.expansion);
    CHECK(size_of(a.graph) == size_of(b.graph));
  }
}

}  // namespace
}  // namespace baechi
