// SPDX-License-Identifier: Apache-2.0
// Plans for graphs that repeat: a few periods are planned well, which is much less work than all of
// them, and what that gives is laid out over the others. Beyond the paper.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "baechi/cost/cost_model.h"
#include "baechi/graph/repetition.h"
#include "baechi/plan/fit/memory_needs.h"
#include "baechi/plan/request/request.h"
#include "baechi/schedule/schedule.h"

namespace baechi {

// Fewer whole periods than this are as well planned at once.
inline constexpr std::size_t kLeastPeriods = 6;

// What all methods find for a few periods, and the search from the best of them: a placement, or
// nothing where none fits or the search was stopped.
using PlaceWindow = std::optional<Placement> (*)(const CostModel& costs,
                                                 const PlanRequest& request);

struct PeriodOptions {
  Budget budget;               // for planning periods
  const PlanRequest& request;  // what is placed and how
  PlaceWindow place_window;
  std::function<bool()> must_stop;
};

struct PeriodPlans {
  std::vector<PlacedGraph> plans;
  Budget spent = 0;  // of the budget: all of it, unless there was no point in it
};

// The best plan that fits of each repetition, on top of that of the repetitions before it. What is
// in none of them goes where its neighbours are, or stays where `base` has it. Requires a
// repetition, and a base that fits.
PeriodPlans plans_by_period(const CostModel& costs, const Units& units,
                            const std::vector<Repetition>& repetitions, const PlacedGraph& base,
                            const PeriodOptions& options);

}  // namespace baechi
