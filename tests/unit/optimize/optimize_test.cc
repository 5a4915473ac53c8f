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
  const auto passes = [&](OptimizeLevel level) {
    const Optimized optimized = optimize(costs, {.level = level});
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
  CHECK(passes(OptimizeLevel::kNone) == "");
  CHECK(passes(OptimizeLevel::kColocate) == "colocate");
  CHECK(passes(OptimizeLevel::kCoplace) == "colocate coplace");
  CHECK(passes(OptimizeLevel::kFuse) == "colocate coplace fuse");
  CHECK(passes(OptimizeLevel::kForward) == "colocate coplace forward");
  CHECK(passes(OptimizeLevel::kAll) == "colocate coplace fuse forward");
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
