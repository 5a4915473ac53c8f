// SPDX-License-Identifier: Apache-2.0
// Small graphs: a random walk over placements, orders and second runs together. A device that waits
// for others repeats what these then read, which no move of one of the three alone leads to. Beyond
// the paper.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "baechi/base/id.h"
#include "baechi/cost/cost_model.h"
#include "baechi/plan/recompute/recompute_plan.h"
#include "baechi/plan/recompute/second_runs.h"

namespace baechi {

// What is walked over.
struct SecondRunsState {
  RecomputeStart start;
  IdVector<OpId, bool> chosen;
  SecondRuns::Leads leads;  // of every operator
};

struct RecomputeWalkOptions {
  std::uint64_t seed = 1;
  std::function<bool()> goes_on;
  // Simulates a state; throws when it is cancelled.
  std::function<RecomputePlan(const SecondRunsState&)> tried;
};

// Takes random steps that make the step not longer than it was some steps ago, memory that is
// missing counted as time. Returns the shortest plan that fits, if it met one.
std::optional<RecomputePlan> walk_with_second_runs(const CostModel& costs, const SecondRuns& runs,
                                                   SecondRunsState state,
                                                   const RecomputeWalkOptions& options);

}  // namespace baechi
