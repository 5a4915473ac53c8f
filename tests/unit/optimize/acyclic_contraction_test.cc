// SPDX-License-Identifier: Apache-2.0
#include "baechi/optimize/acyclic_contraction.h"

#include <doctest/doctest.h>

#include <string>
#include <utility>
#include <vector>

#include "baechi/base/random.h"
#include "baechi/graph/op_graph_builder.h"
#include "unit/graphs.h"

namespace baechi {
namespace {

using Ends = std::pair<std::size_t, std::size_t>;

OpGraph graph_of(std::size_t num_ops, const std::vector<Ends>& edges) {
  OpGraphBuilder builder("edges");
  for (std::size_t i = 0; i < num_ops; ++i)
    builder.set_time(builder.add_operator({.name = "op" + std::to_string(i)}), "gpu", Time(1));
  for (const auto& [from, to] : edges) builder.add_control_edge(OpId(from), OpId(to));
  return std::move(builder).build();
}

// The truth by plain search: is there a path from `from` to `to` besides the edges between them?
class Oracle {
 public:
  explicit Oracle(const OpGraph& graph) : graph_(graph), cluster_(graph.num_ops()) {
    for (const OpId op : graph.ops()) cluster_[op] = op.value();
  }
  bool second_path(std::uint32_t from, std::uint32_t to) const {
    std::vector<char> seen(graph_.num_ops(), 0);
    std::vector<std::uint32_t> stack{from};
    while (!stack.empty()) {
      const std::uint32_t at = stack.back();
      stack.pop_back();
      for (const OpId op : graph_.ops()) {
        if (cluster_[op] != at) continue;
        for (const Edge& edge : graph_.out_edges(op)) {
          const std::uint32_t next = cluster_[edge.to];
          if (next == at || (at == from && next == to) || seen[next] != 0) continue;
          if (next == to) return true;
          seen[next] = 1;
          stack.push_back(next);
        }
      }
    }
    return false;
  }
  std::uint32_t cluster(OpId op) const { return cluster_[op]; }
  void merge(std::uint32_t a, std::uint32_t b) {
    for (std::uint32_t& c : cluster_)
      if (c == std::max(a, b)) c = std::min(a, b);
  }

 private:
  const OpGraph& graph_;
  IdVector<OpId, std::uint32_t> cluster_;
};

// Contracts all edges in random order, several times over, and compares every answer.
void compare(const OpGraph& graph, std::uint64_t seed, const AcyclicContraction::Options& options) {
  Random random(seed);
  AcyclicContraction contraction(graph, options);
  Oracle oracle(graph);
  std::vector<Edge> edges;
  for (const OpId op : graph.ops())
    edges.insert(edges.end(), graph.out_edges(op).begin(), graph.out_edges(op).end());
  const double appetite = random.unit();
  for (std::size_t step = 0; step < 2 * edges.size(); ++step) {
    const Edge edge = edges[random.below(edges.size())];
    const std::uint32_t u = contraction.find(edge.from), v = contraction.find(edge.to);
    CHECK(u == oracle.cluster(edge.from));
    CHECK(v == oracle.cluster(edge.to));
    if (u == v || !random.chance(appetite)) continue;
    const bool would_cycle = oracle.second_path(u, v);
    switch (contraction.contract(edge.from, edge.to)) {
      case EdgeContraction::kByDegree:
      case EdgeContraction::kByReachability:
        CHECK_FALSE(would_cycle);
        oracle.merge(u, v);
        break;
      case EdgeContraction::kWouldCycle:
        CHECK(would_cycle);
        break;
      case EdgeContraction::kGaveUp:
        CHECK(options.search_limit < 100);
        break;
    }
  }
}

TEST_CASE("fusion: contractions agree with a plain search for second paths") {
  for (std::uint64_t seed = 1; seed <= 3000; ++seed) {
    CAPTURE(seed);
    compare(testing::random_dag(seed, {.min_ops = 2, .max_ops = 16, .edge_chance = 0.25}), seed,
            {.search_limit = 1'000'000});
  }
}

TEST_CASE("fusion: a short search gives up, but never makes a cycle") {
  for (std::uint64_t seed = 1; seed <= 1000; ++seed) {
    CAPTURE(seed);
    compare(testing::random_dag(seed, {.min_ops = 8, .max_ops = 24, .edge_chance = 0.3}), seed,
            {.search_limit = 1 + seed % 12});
    compare(testing::random_dag(seed, {.min_ops = 8, .max_ops = 24, .edge_chance = 0.3}), seed,
            {.by_reachability = false, .search_limit = 50});
  }
}

//   a0 -> a1 -> a2 -> ...     ladders, grids, and chains with shortcuts to everywhere: the graphs
//    |     |     |            on which a careless contraction closes a cycle soonest
//   b0 -> b1 -> b2 -> ...
TEST_CASE("fusion: adversarial graphs keep their order") {
  constexpr std::size_t kSide = 6;
  std::vector<Ends> grid, shortcuts, butterfly;
  for (std::size_t i = 0; i < kSide; ++i)
    for (std::size_t j = 0; j < kSide; ++j) {
      if (j + 1 < kSide) grid.emplace_back(i * kSide + j, i * kSide + j + 1);
      if (i + 1 < kSide) grid.emplace_back(i * kSide + j, (i + 1) * kSide + j);
    }
  for (std::size_t i = 0; i < 12; ++i)
    for (std::size_t j = i + 1; j < 12; ++j) shortcuts.emplace_back(i, j);
  for (std::size_t level = 0; level < 3; ++level)
    for (std::size_t i = 0; i < 8; ++i) {
      butterfly.emplace_back(level * 8 + i, (level + 1) * 8 + i);
      butterfly.emplace_back(level * 8 + i, (level + 1) * 8 + (i ^ (std::size_t{1} << level)));
    }
  for (std::uint64_t seed = 1; seed <= 200; ++seed) {
    CAPTURE(seed);
    for (const std::size_t limit : {std::size_t{3}, std::size_t{1'000'000}}) {
      compare(graph_of(kSide * kSide, grid), seed, {.search_limit = limit});
      compare(graph_of(12, shortcuts), seed, {.search_limit = limit});
      compare(graph_of(32, butterfly), seed, {.search_limit = limit});
    }
  }
}

TEST_CASE("fusion: what only a search can tell") {
  //   0 -> 1 -> 3        2's other parent 4 comes after 0, and 0's other child 1 before 2; yet
  //    \                 no second path joins 0 and 2
  //     +-> 2 <- 4
  const OpGraph graph = graph_of(5, {{0, 1}, {1, 3}, {0, 2}, {4, 2}});
  AcyclicContraction by_degree(graph, {.by_reachability = false});
  CHECK(by_degree.contract(OpId(0), OpId(2)) == EdgeContraction::kGaveUp);
  AcyclicContraction by_search(graph, {});
  CHECK(by_search.contract(OpId(0), OpId(2)) == EdgeContraction::kByReachability);
  CHECK(by_search.contract(OpId(1), OpId(3)) == EdgeContraction::kByDegree);
}

}  // namespace
}  // namespace baechi
