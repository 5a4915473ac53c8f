// SPDX-License-Identifier: Apache-2.0
// Methods that run other methods: `auto`, which searches on from the best of them and keeps the
// best plan, and `all`, which also shows the baselines. `exact` runs them too, for a plan to beat.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "baechi/cost/cost_model.h"
#include "baechi/plan/attempt/attempt.h"
#include "baechi/plan/request/request.h"
#include "baechi/schedule/plan.h"

namespace baechi {

// Of plans whose search did not come to its end.
inline constexpr const char* kSearchStopped =
    "the search ran out of processor time or was stopped by you: another run may find another plan";

struct PortfolioResult {
  std::vector<Attempt> attempts;       // in the order they were made; at least one
  std::vector<PassStatistics> passes;  // of the Graph Optimizer
  std::vector<std::string> notes;
  std::optional<NamedBound> bound;  // that a search over all plans has reached
};

// What the request's method stands for. Throws InputError for a name that nobody knows. Requires a
// budget that is positive and finite.
PortfolioResult run_portfolio(const CostModel& costs, const Units& units,
                              const PlanRequest& request);

// The best placement that it finds; nothing where none fits or the search was stopped.
std::optional<Placement> best_placement(const CostModel& costs, const PlanRequest& request);

}  // namespace baechi
