// SPDX-License-Identifier: Apache-2.0
// Methods that run other methods: `auto`, which searches on from the best of them and keeps the
// best plan, and `all`, which also shows the baselines. `exact` runs them too, for a plan to beat.
#pragma once

#include <cstdint>
#include <optional>

#include "baechi/cost/cost_model.h"
#include "baechi/plan/attempt/attempt.h"
#include "baechi/plan/portfolio_result.h"
#include "baechi/plan/request/request.h"

namespace baechi {

// What the request's method stands for. Throws InputError for a name that nobody knows. Plans that are known are of these costs and the request's options. The
// search has less by what was `spent` before, in simulated operators.
PortfolioResult run_portfolio(const CostModel& costs, const Units& units,
                              const PlanRequest& request, const KnownPlans& known = {},
                              std::int64_t spent = 0);

// The best placement that it finds; nothing where none fits or the search was stopped.
std::optional<Placement> best_placement(const CostModel& costs, const PlanRequest& request);

}  // namespace baechi
