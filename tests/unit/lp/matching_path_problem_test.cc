// SPDX-License-Identifier: Apache-2.0
#include "baechi/lp/matching_path_problem.h"

#include <doctest/doctest.h>

#include <algorithm>

#include "baechi/base/assert.h"
#include "baechi/base/error.h"
#include "unit/lp/matching_oracle.h"

namespace baechi::lp {
namespace {

TEST_CASE("matching path problem: a topological numbering is kept, any other is renumbered") {
  const std::vector<std::int64_t> lengths = {10, 20, 30};
  const MatchingPathProblem kept(lengths, std::vector<PathEdge>{{1, 2, 7}, {0, 1, 5}});
  CHECK(kept.caller_node() == std::vector<std::uint32_t>{0, 1, 2});
  CHECK(kept.caller_edge() == std::vector<std::uint32_t>{1, 0});
  CHECK(kept.unmatched_path() == 72);

  const MatchingPathProblem renumbered(lengths, std::vector<PathEdge>{{2, 1, 7}, {1, 0, 5}});
  CHECK(renumbered.caller_node() == std::vector<std::uint32_t>{2, 1, 0});
  CHECK(renumbered.graph().length == std::vector<std::int64_t>{30, 20, 10});
  CHECK(renumbered.graph().cost == std::vector<std::int64_t>{7, 5});
  CHECK(renumbered.unmatched_path() == 72);
}

TEST_CASE("matching path problem: shuffled random graphs keep their edges and longest path") {
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    CAPTURE(seed);
    instances::Instance instance = instances::with_times(instances::random_dag(20, 0.2, seed),
                                                         instances::Regime::kMixed, seed);
    Random random(seed);
    std::vector<std::uint32_t> label(instance.lengths.size());
    for (std::uint32_t i = 0; i < label.size(); ++i) {
      label[i] = i;
      std::swap(label[i], label[random.below(i + 1)]);
    }
    std::vector<std::int64_t> lengths(instance.lengths.size());
    for (std::size_t i = 0; i < label.size(); ++i) lengths[label[i]] = instance.lengths[i];
    for (PathEdge& edge : instance.edges) edge = {label[edge.from], label[edge.to], edge.cost};
    instance.lengths = lengths;

    const MatchingPathProblem problem = instance.problem();
    const PathGraph& graph = problem.graph();
    const std::vector<bool> nothing(instance.edges.size(), false);
    CHECK(problem.unmatched_path() ==
          oracle::longest_path(instance, oracle::pay(instance, nothing)));
    for (std::size_t e = 0; e < graph.num_edges(); ++e) {
      const PathEdge& edge = instance.edges[problem.caller_edge()[e]];
      CHECK(graph.from[e] < graph.to[e]);
      CHECK(problem.caller_node()[graph.from[e]] == edge.from);
      CHECK(problem.caller_node()[graph.to[e]] == edge.to);
      CHECK(graph.cost[e] == edge.cost);
    }
    for (std::size_t at = 0; at + 1 < graph.in_edge.size(); ++at)
      CHECK(graph.to[graph.in_edge[at]] <= graph.to[graph.in_edge[at + 1]]);
  }
}

TEST_CASE(
    "matching path problem: cycles and negative numbers are our bugs, absurd sums the user's") {
  const std::vector<std::int64_t> lengths = {1, 1};
  CHECK_THROWS_AS(MatchingPathProblem(lengths, std::vector<PathEdge>{{0, 1, 1}, {1, 0, 1}}),
                  InternalError);
  CHECK_THROWS_AS(MatchingPathProblem(lengths, std::vector<PathEdge>{{0, 0, 1}}), InternalError);
  CHECK_THROWS_AS(MatchingPathProblem(lengths, std::vector<PathEdge>{{0, 1, -1}}), InternalError);
  CHECK_THROWS_AS(MatchingPathProblem(lengths, std::vector<PathEdge>{{0, 2, 1}}), InternalError);
  CHECK_THROWS_AS(MatchingPathProblem(std::vector<std::int64_t>{-1}, {}), InternalError);

  constexpr std::int64_t kHuge = std::int64_t{1} << 61;
  CHECK_NOTHROW(MatchingPathProblem(std::vector<std::int64_t>{kHuge}, {}));
  CHECK_THROWS_AS(
      MatchingPathProblem(std::vector<std::int64_t>{kHuge, 1}, std::vector<PathEdge>{{0, 1, 0}}),
      InputError);
  CHECK_THROWS_AS(MatchingPathProblem(lengths, std::vector<PathEdge>{{0, 1, kHuge * 3}}),
                  InputError);
}

TEST_CASE("matching path problem: no nodes, one node, no edges") {
  CHECK(MatchingPathProblem({}, {}).unmatched_path() == 0);
  CHECK(MatchingPathProblem(std::vector<std::int64_t>{5}, {}).unmatched_path() == 5);
  CHECK(MatchingPathProblem(std::vector<std::int64_t>{5, 9, 2}, {}).unmatched_path() == 9);
}

}  // namespace
}  // namespace baechi::lp
