// SPDX-License-Identifier: Apache-2.0
#include "baechi/place/list/favorite_child.h"

#include <doctest/doctest.h>

#include "baechi/cost/cost_model.h"
#include "baechi/place/placer.h"
#include "unit/graphs.h"

namespace baechi {
namespace {

// The longest path when every edge with tensors pays, unless it leads to the favorite child.
Time longest_path(const CostModel& costs, const FavoriteChildren& favorites) {
  const FavoriteProblem problem = favorite_problem(costs);
  const OpGraph& graph = costs.graph();
  IdVector<OpId, Time> finish(graph.num_ops());
  Time longest;
  for (const OpId op : graph.topological_order()) {
    Time start;
    for (const lp::PathEdge& edge : problem.edges)
      if (edge.to == op.value()) {
        const bool favorite = favorites.child[OpId(edge.from)] == op;
        start = std::max(start, finish[OpId(edge.from)] + Time(favorite ? 0 : edge.cost));
      }
    finish[op] = start + Time(problem.lengths[op.index()]);
    longest = std::max(longest, finish[op]);
  }
  return longest;
}

TEST_CASE("favorite children: always a matching along tensors, and its path is what it claims") {
  for (std::uint64_t seed = 0; seed < 400; ++seed) {
    CAPTURE(seed);
    const OpGraph graph = testing::random_dag(
        seed, {.max_ops = 30, .edge_chance = 0.15, .group_chance = 0.2, .cpu_chance = 0.5});
    const Cluster cluster = testing::random_cluster(seed);
    const CostModel costs(graph, cluster);
    const FavoriteChildren favorites = find_favorite_children(costs, {});
    for (const OpId op : graph.ops()) {
      if (const auto child = favorites.child[op]) CHECK(favorites.parent[*child] == op);
      if (const auto parent = favorites.parent[op]) {
        CHECK(favorites.child[*parent] == op);
        bool tensor_between = false;
        for (const Edge& edge : graph.in_edges(op))
          tensor_between = tensor_between || (edge.from == *parent && edge.tensor.has_value());
        CHECK(tensor_between);
      }
    }
    CHECK(favorites.longest_path == longest_path(costs, favorites));
    CHECK(favorites.bound <= favorites.longest_path);
  }
}

TEST_CASE("favorite children: the LP methods give matchings too, and bounds for every matching") {
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    CAPTURE(seed);
    const OpGraph graph = testing::random_dag(
        seed, {.max_ops = 30, .edge_chance = 0.15, .group_chance = 0.2, .cpu_chance = 0.5});
    const Cluster cluster = testing::random_cluster(seed);
    const CostModel costs(graph, cluster);
    const FavoriteChildren matching = find_favorite_children(costs, {});
    for (const FavoriteMethod method : {FavoriteMethod::kLpApprox, FavoriteMethod::kLpExact}) {
      for (const double threshold : {0.1, 0.5}) {
        PlaceOptions options;
        options.favorites = method;
        options.lp_threshold = threshold;
        const FavoriteChildren favorites = find_favorite_children(costs, options);
        for (const OpId op : graph.ops()) {
          if (const auto child = favorites.child[op]) CHECK(favorites.parent[*child] == op);
          if (const auto parent = favorites.parent[op]) CHECK(favorites.child[*parent] == op);
        }
        CHECK(favorites.method == method);
        CHECK(favorites.longest_path == longest_path(costs, favorites));
        CHECK(favorites.bound <= favorites.longest_path);
        CHECK(favorites.bound <= matching.longest_path);
      }
    }
  }
}

TEST_CASE("favorite children: a single device has nothing to send") {
  const OpGraph graph = testing::figure_1();
  const Cluster cluster = testing::unit_latency_cluster(1, Bytes(100));
  const FavoriteChildren favorites = find_favorite_children(CostModel(graph, cluster), {});
  CHECK(favorites.longest_path == Time(8));
  CHECK(favorites.ratio() == doctest::Approx(1.0));
}

// a-b-c-d and e-f for free, and a-e and f-d have slack for one unit each: 1 + 3 + 3 + 1.
TEST_CASE("favorite children: figure 1's matching frees its longest path of all transfers") {
  const OpGraph graph = testing::figure_1();
  const Cluster cluster = testing::unit_latency_cluster(2, Bytes(100));
  const FavoriteChildren favorites = find_favorite_children(CostModel(graph, cluster), {});
  CHECK(favorites.longest_path == Time(8));
  CHECK(favorites.bound == Time(8));
  CHECK(favorites.child[OpId(0)] == OpId(1));
  CHECK(favorites.child[OpId(1)] == OpId(2));
  CHECK(favorites.child[OpId(2)] == OpId(3));
}

}  // namespace
}  // namespace baechi
