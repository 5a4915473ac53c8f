// SPDX-License-Identifier: Apache-2.0
// The matching-path relaxation (see matching_path_problem.h): presolve, soft water-filling,
// sifting, interior point.
#pragma once

#include "baechi/base/cancel.h"
#include "baechi/lp/relaxed_solution.h"

namespace baechi::lp {

// All limits count work, so that a result does not depend on the machine. At a limit the result is
// the best certified one so far, and `converged` is false.
struct ApproximateOptions {
  double gap = 0.005;                  // stop when upper <= (1 + gap) lower
  int max_sweeps = 2000;               // of soft water-filling
  double max_work = 2e9;               // multiplications in factorisations, if it comes to that
  const CancelFlag* cancel = nullptr;  // throws Cancelled
};

// Soft water-filling; where that drifts, the interior point method takes over if it is cheap there.
RelaxedSolution solve_approximately(const MatchingPathProblem& problem,
                                    const ApproximateOptions& options = {});

struct ExactOptions {
  double gap = 1e-6;                   // 5e-7 is about what double precision always reaches
  double max_work = 2e10;              // multiplications in factorisations
  int max_iterations = 300;            // of the interior point method, over all sifting rounds
  const CancelFlag* cancel = nullptr;  // throws Cancelled
};

// Soft water-filling finds where the long paths are, the interior point method solves there. At its
// limits it falls back to what solve_approximately() certifies.
RelaxedSolution solve_exactly(const MatchingPathProblem& problem, const ExactOptions& options = {});

}  // namespace baechi::lp
