// SPDX-License-Identifier: Apache-2.0
// From a fractional matching on the reduced graph to a certified solution of the whole problem.
#include "baechi/lp/relaxed_solution.h"

#include <algorithm>

namespace baechi::lp {

void repair_group_sums(const ReducedGraph& graph, std::vector<double>& y) {
  std::vector<double> sum(graph.num_groups, 0);
  for (std::size_t e = 0; e < graph.num_edges(); ++e) {
    y[e] = graph.cost[e] > 0 && y[e] > 0 ? std::min(y[e], 1.0) : 0.0;  // and 0 if not a number
    sum[graph.out_group[e]] += y[e];
    sum[graph.in_group[e]] += y[e];
  }
  sum[kFreeGroup] = 0;
  for (std::size_t e = 0; e < graph.num_edges(); ++e)
    y[e] /= std::max({1.0, sum[graph.out_group[e]], sum[graph.in_group[e]]});
}

namespace {

// Gives each edge without a matched share what `wish` would, within what both its ends have left.
void spend_the_rest(const PathGraph& graph, const std::vector<double>& wish,
                    std::vector<double>& y) {
  struct Capacity {
    double out = 1, in = 1;
  };
  std::vector<Capacity> left(graph.num_nodes());
  const auto spend = [&](std::size_t e) {
    left[graph.from[e]].out -= y[e];
    left[graph.to[e]].in -= y[e];
  };
  for (std::size_t e = 0; e < y.size(); ++e) spend(e);
  for (std::size_t e = 0; e < y.size(); ++e) {
    if (y[e] > 0) continue;
    const double room = std::min(left[graph.from[e]].out, left[graph.to[e]].in);
    y[e] = std::max(0.0, std::min(wish[e], room));
    spend(e);
  }
}

}  // namespace

double longest_path_at(const MatchingPathProblem& problem, const std::vector<double>& x) {
  const PathGraph& graph = problem.graph();
  std::vector<double> head(graph.num_nodes(), 0);
  double longest = 0;
  for (std::size_t node = 0; node < graph.num_nodes(); ++node) {
    const double end = head[node] + static_cast<double>(graph.length[node]);
    longest = std::max(longest, end);
    for (std::size_t e = graph.out_begin[node]; e < graph.out_begin[node + 1]; ++e)
      head[graph.to[e]] = std::max(head[graph.to[e]], end + static_cast<double>(graph.cost[e]) *
                                                                x[problem.caller_edge()[e]]);
  }
  return longest;
}

RelaxedSolution extend_to_problem(const MatchingPathProblem& problem, const ReducedGraph& reduced,
                                  const std::vector<double>& y, double lower_bound,
                                  const std::vector<double>* elsewhere) {
  std::vector<double> repaired = y, whole(problem.num_edges(), 0);
  repair_group_sums(reduced, repaired);
  for (const std::uint32_t e : reduced.taken) whole[e] = 1;
  for (std::size_t e = 0; e < reduced.num_edges(); ++e)
    if (reduced.cost[e] > 0) whole[reduced.original[e]] = repaired[e];
  if (elsewhere != nullptr) {
    std::vector<double> wish(whole.size());
    for (std::size_t e = 0; e < wish.size(); ++e)
      wish[e] = 1 - (*elsewhere)[problem.caller_edge()[e]];
    spend_the_rest(problem.graph(), wish, whole);
  }

  RelaxedSolution solution;
  solution.x.resize(whole.size());
  for (std::size_t e = 0; e < whole.size(); ++e)
    solution.x[problem.caller_edge()[e]] = 1 - whole[e];
  solution.upper_bound = longest_path_at(problem, solution.x);
  solution.lower_bound = std::min(solution.upper_bound, reduced.unit * lower_bound);
  return solution;
}

}  // namespace baechi::lp
