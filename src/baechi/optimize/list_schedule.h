// SPDX-License-Identifier: Apache-2.0
// The order in which devices work off a placement: by priority, the longest way to the end of the
// step first. Beyond the paper.
#pragma once

#include "baechi/base/id.h"
#include "baechi/base/units.h"
#include "baechi/cost/cost_model.h"
#include "baechi/schedule/schedule.h"

namespace baechi {

// For every operator, the longest path of compute times from its start to the end of the step, with
// the transfers that the placement makes necessary on it.
IdVector<OpId, Time> critical_times(const CostModel& costs, const Placement& placement);

struct ListSchedule {
  PlacedGraph placed;
  Time makespan;  // as far as the scheduler can tell; the simulator has the last word
};

// A free device takes, of the operators that may start, the one with the largest priority (ties:
// the first in topological order). Transfers are queued as the simulator does. Never deadlocks.
// Requires every operator on a device that can run it. O((ops + edges + transfers) log ops).
ListSchedule list_schedule(const CostModel& costs, const Placement& placement,
                           const IdVector<OpId, Time>& priority);

// With critical_times() as priorities: a better order than most for plans whose order came from a
// graph of meta-operators.
ListSchedule list_schedule(const CostModel& costs, const Placement& placement);

}  // namespace baechi
