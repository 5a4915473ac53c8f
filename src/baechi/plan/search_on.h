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

// Makes the placement that `best` has a better one if it can, and returns where its searches ended.
// Starts the clock of the budget.
std::vector<PlacedGraph> search_on(const Problem& problem, const PlanRequest& request,
                                   Budget& budget, Attempt& best);

}  // namespace baechi
