// SPDX-License-Identifier: Apache-2.0
// The matching-path relaxation to optimality: presolve, soft water-filling, sifting, interior
// point.
#pragma once

#include "baechi/base/cancel.h"
#include "baechi/lp/relaxed_solution.h"

namespace baechi::lp {

struct ExactOptions {
  double gap = 1e-6;  // stop when upper <= (1 + gap) lower
  double max_work =
      2e10;  // multiplications in factorisations, so that the limit is the same anywhere
  int max_iterations = 300;            // of the interior point method, over all sifting rounds
  const CancelFlag* cancel = nullptr;  // throws Cancelled
};

// When a limit is reached first, the result is the best certified one so far, in the worst case
// soft water-filling's, and `converged` is false.
RelaxedSolution solve_exactly(const MatchingPathProblem& problem, const ExactOptions& options = {});

}  // namespace baechi::lp
