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
#include "baechi/plan/planner.h"
#include "baechi/plan/search/budget.h"
#include "baechi/schedule/plan.h"

namespace baechi {

struct PortfolioEntry {
  std::string_view name;
  std::string_view summary;
  bool all_placers = false;       // those that cannot win as well, to compare with
  double proof = Share::kProof;   // of the budget: for a proof before the search, and
  double proof_after_search = 0;  // behind it
};
std::span<const PortfolioEntry> portfolio_methods();

// It makes one plan, and does not run others. Throws as placers_of.
bool runs_alone(std::string_view method);

// The placers whose plans the method compares, its own alone if it is one. Throws InputError that
// lists the known names.
std::vector<const PlacerEntry*> placers_of(std::string_view method);

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

}  // namespace baechi
