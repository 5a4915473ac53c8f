// SPDX-License-Identifier: Apache-2.0
// The search of `refine` and `auto`, from the best plan that other methods have found. Beyond the
// paper.
#pragma once

#include <vector>

#include "baechi/plan/attempt/attempt.h"
#include "baechi/plan/request/request.h"
#include "baechi/plan/search/period_plans.h"
#include "baechi/plan/search/spending.h"
#include "baechi/schedule/schedule.h"

namespace baechi {

// A search with a part of the budget, where its local searches ended, and the best plan by then.
struct SearchPart {
  Budget budget = 0;
  std::vector<PlacedGraph> ends = {};
  PlacedGraph best = {};
};

struct SearchOnOptions {
  PlaceWindow place_window;  // for graphs that repeat
  double first = 0.1;        // the shortest search, in seconds
  double of_small = 1;       // one of a small graph
};

// Makes the placement that `best` has a better one if it can. The searches that `first`, 10 times and
// 100 times as many seconds would be, up to a fifth of the budget, come first or stand beside it, and
// are up to two ninths more work: the plan is no longer than any of theirs. A small graph has
// searches of up to `of_small` seconds, one after the other, until the budget ends: with more of it
// they are the same, and some more. Starts the clock.
std::vector<SearchPart> search_on(const Problem& problem, const PlanRequest& request,
                                  Spending& spending, Attempt& best,
                                  const SearchOnOptions& options);

}  // namespace baechi
