// SPDX-License-Identifier: Apache-2.0
#include "baechi/plan/fit/suggestions.h"

#include <doctest/doctest.h>

#include <utility>

#include "baechi/cluster/cluster.h"
#include "baechi/cost/cost_model.h"
#include "baechi/plan/fit/any_fit.h"
#include "baechi/plan/fit/fit_search.h"
#include "unit/graphs.h"

namespace baechi {
namespace {

OpGraph many_weights() {
  return testing::random_dag(1, {.min_ops = 400,
                                 .max_ops = 400,
                                 .edge_chance = 0.0125,
                                 .max_tensor_bytes = 50,
                                 .max_permanent_bytes = 20});
}

TEST_CASE("suggestions: they take what the budget is for, and a few replays more") {
  const OpGraph graph = many_weights();
  const Cluster cluster(uniform_cluster({.count = 16, .capacity = Bytes(100), .latency = Time(1)}));
  const CostModel costs(graph, cluster);
  for (const double budget : {0.2, 0.05, 0.01}) {
    CAPTURE(budget);
    const Suggestions found = suggest(costs, {.budget = budget});
    CHECK(found.smallest_capacity.has_value());
    CHECK(found.work <= Budget(budget).replays() * 11 / 10 + 20 * replay_cost(graph));
  }
}

TEST_CASE("suggestions: what there was no work for is said, and nothing is made up") {
  const OpGraph graph = many_weights();
  const Cluster cluster(uniform_cluster({.count = 16, .capacity = Bytes(100), .latency = Time(1)}));
  const Suggestions found = suggest(CostModel(graph, cluster), {.budget = 1e-6});
  CHECK(found.cut_short);
  CHECK_FALSE(found.smallest_capacity.has_value());
  CHECK_FALSE(found.more_devices.has_value());
  CHECK_FALSE(suggest(CostModel(graph, cluster), {.budget = 0.2}).cut_short);
}

TEST_CASE("suggestions: there are none for operators that no device can run") {
  const OpGraph graph = many_weights();
  ClusterSpec spec = uniform_cluster({.count = 4, .capacity = Bytes(100), .latency = Time(1)});
  for (Device& device : spec.devices) device.kind = "cpu";
  const Cluster cluster(std::move(spec));
  const Suggestions found = suggest(CostModel(graph, cluster), {});
  CHECK_FALSE(found.smallest_capacity.has_value());
  CHECK_FALSE(found.more_devices.has_value());
}

}  // namespace
}  // namespace baechi
