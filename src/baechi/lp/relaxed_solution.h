// SPDX-License-Identifier: Apache-2.0
// A certified solution of the matching-path relaxation (see matching_path_problem.h).
#pragma once

#include <vector>

#include "baechi/lp/matching_path_problem.h"
#include "baechi/lp/reduced_graph.h"

namespace baechi::lp {

struct RelaxedSolution {
  std::vector<double> x;  // by the caller's edge; feasible to the last bit or so
  // Nanoseconds. The optimum lies between the two: upper_bound is w at x, evaluated on the whole
  // problem; lower_bound follows from a unit flow and prices. Both in double precision, so true up
  // to about 1e-13 relative.
  double upper_bound = 0, lower_bound = 0;
  bool converged = false;  // the gap asked for was reached
  int sweeps = 0;          // of soft water-filling
  int iterations = 0;      // of the interior point method; 0 when it had nothing to do

  // (upper - lower) / lower; 0 for an empty problem.
  double gap() const { return lower_bound > 0 ? upper_bound / lower_bound - 1 : upper_bound; }
};

// Extends y (by edge of the reduced graph, in reduced units) to the whole problem: repairs rounding
// errors in the group sums, evaluates w. `lower_bound` is in reduced units. Edges that are not in
// the reduced graph pay in full, or, when `elsewhere` gives a feasible x, take off what it does as
// far as their groups have it to spare.
RelaxedSolution extend_to_problem(const MatchingPathProblem& problem, const ReducedGraph& reduced,
                                  const std::vector<double>& y, double lower_bound,
                                  const std::vector<double>* elsewhere = nullptr);

// w at x, in nanoseconds.
double longest_path_at(const MatchingPathProblem& problem, const std::vector<double>& x);

// Divides each y by the larger of its two groups' sums where that exceeds 1.
void repair_group_sums(const ReducedGraph& graph, std::vector<double>& y);

}  // namespace baechi::lp
