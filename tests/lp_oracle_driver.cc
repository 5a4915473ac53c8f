// SPDX-License-Identifier: Apache-2.0
// Solves matching-path problems from stdin with every solver of lp/, for
// tests/python/lp_oracle_test.py, which asks HiGHS for a second opinion.
//
//   in:   a problem is "NODES EDGES", NODES lengths, then EDGES lines "FROM TO COST"; any number of
//   them out:  one JSON object per problem and line
#include <cinttypes>
#include <cstdint>
#include <cstdio>
#include <vector>

#include "baechi/lp/favorite_matching.h"
#include "baechi/lp/relaxation_solver.h"

namespace baechi::lp {
namespace {

void print(const char* name, const RelaxedSolution& solution, const FavoriteMatching& rounded) {
  std::printf(
      "\"%s\": {\"lower\": %.17g, \"upper\": %.17g, \"converged\": %s, \"rounded\": %" PRId64
      ", \"x\": [",
      name, solution.lower_bound, solution.upper_bound, solution.converged ? "true" : "false",
      rounded.longest_path);
  for (std::size_t e = 0; e < solution.x.size(); ++e)
    std::printf("%s%.17g", e > 0 ? ", " : "", solution.x[e]);
  std::printf("]}");
}

bool solve_one() {
  std::size_t nodes = 0, edges = 0;
  if (std::scanf("%zu %zu", &nodes, &edges) != 2) return false;
  std::vector<std::int64_t> lengths(nodes);
  std::vector<PathEdge> path_edges(edges);
  bool complete = true;
  for (std::int64_t& length : lengths) complete &= std::scanf("%" SCNd64, &length) == 1;
  for (PathEdge& edge : path_edges)
    complete &=
        std::scanf("%" SCNu32 " %" SCNu32 " %" SCNd64, &edge.from, &edge.to, &edge.cost) == 3;
  if (!complete) return false;

  const MatchingPathProblem problem(lengths, path_edges);
  const FavoriteMatching favorites = find_favorite_matching(problem);
  std::printf("{\"matching\": %" PRId64 ", ", favorites.longest_path);
  const RelaxedSolution soft = solve_approximately(problem);
  print("approximate", soft, round_to_matching(problem, soft.x));
  std::printf(", ");
  const RelaxedSolution exact = solve_exactly(problem);
  print("exact", exact, round_to_matching(problem, exact.x));
  std::printf("}\n");
  return true;
}

}  // namespace
}  // namespace baechi::lp

int main() {
  while (baechi::lp::solve_one()) {
  }
  return 0;
}
