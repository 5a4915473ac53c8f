// SPDX-License-Identifier: Apache-2.0
// From a graph and a cluster to a plan that is simulated, verified and within every capacity, or to
// a reason why there is none that a user can act on.
#pragma once

#include "baechi/cost/cost_model.h"
#include "baechi/plan/request/answer.h"
#include "baechi/plan/request/request.h"

namespace baechi {

// Throws InputError for an unknown method, or one of steps of micro-batches; Cancelled when asked to
// stop before there is a plan. Fills `times`, if given, in the order of the plan's methods and passes.
PlanResult make_plan(const CostModel& costs, const PlanRequest& request,
                     PlanTimes* times = nullptr);

}  // namespace baechi
