// SPDX-License-Identifier: Apache-2.0
// The search of `refine` and `auto`, from the best plan that other methods have found. Beyond the
// paper.
#pragma once

#include <vector>

#include "baechi/plan/attempt.h"
#include "baechi/plan/budget.h"
#include "baechi/plan/planner.h"
#include "baechi/schedule/schedule.h"

namespace baechi {

// A search with a part of the budget, where its local searches ended, and the best plan by then.
struct SearchPart {
  double seconds = 0;
  std::vector<PlacedGraph> ends = {};
  PlacedGraph best = {};
};

// Makes the placement that `best` has a better one if it can. The searches that 0.1, 1, 10, ...
// seconds would be, up to a fifth of the budget, come first, and are up to two ninths more work than
// it: the plan is no longer than any of theirs. Starts the budget's clock.
std::vector<SearchPart> search_on(const Problem& problem, const PlanRequest& request,
                                  Budget& budget, Attempt& best);

}  // namespace baechi
