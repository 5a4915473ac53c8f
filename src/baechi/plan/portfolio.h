// SPDX-License-Identifier: Apache-2.0
// Methods that run other methods: `auto`, which keeps the best plan, and `all`, which shows the lot.
#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "baechi/cost/cost_model.h"
#include "baechi/plan/attempt.h"
#include "baechi/plan/planner.h"

namespace baechi {

struct PortfolioEntry {
  std::string_view name;
  std::string_view summary;
};
std::span<const PortfolioEntry> portfolio_methods();

// The attempts that the request's method stands for, in the order they were made; at least one.
// Throws InputError for a name that nobody knows.
std::vector<Attempt> run_portfolio(const CostModel& costs, const Units& units,
                                   const PlanRequest& request);

}  // namespace baechi
