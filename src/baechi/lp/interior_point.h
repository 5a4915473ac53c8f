// SPDX-License-Identifier: Apache-2.0
// The matching-path relaxation on a reduced graph by Mehrotra's predictor-corrector method.
//
//   min s_sink subject to                                              multiplier
//     z_e = s_to - s_from - length_e + cost_e y_e >= 0   for edge e    f_e >= 0, a unit flow
//     r_g = 1 - sum of y over group g             >= 0   for group g   a_g >= 0, its price
//     y_e                                         >= 0   for edge e    t_e >= 0
//   where t_e = a_out + a_in - cost_e f_e, with the prices of the two groups that e belongs to.
//
// Eliminating y, z, f, t and r edge by edge leaves one quasi-definite system in (s, a).
#pragma once

#include <vector>

#include "baechi/base/cancel.h"
#include "baechi/lp/reduced_graph.h"

namespace baechi::lp {

struct InteriorOptions {
  double gap = 5e-7;  // stop when upper <= (1 + gap) lower
  int max_iterations = 150;
  double max_work = 2e10;  // multiplications in factorisations: a limit that is the same everywhere
  const CancelFlag* cancel = nullptr;  // throws Cancelled
};

// In the reduced graph's units. Both bounds are certified: `upper_bound` is w at y, `lower_bound`
// belongs to a unit flow and prices repaired to satisfy every constraint.
struct InteriorSolution {
  std::vector<double> y;  // by edge
  double upper_bound = 0, lower_bound = 0;
  int iterations = 0;
  double work = 0;
  bool converged = false;
};

// `start` is a feasible y, for example soft water-filling's.
InteriorSolution solve_interior(const ReducedGraph& graph, const std::vector<double>& start,
                                const InteriorOptions& options = {});

}  // namespace baechi::lp
