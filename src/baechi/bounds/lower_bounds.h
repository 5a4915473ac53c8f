// SPDX-License-Identifier: Apache-2.0
// Lower bounds on the step time of any placement: what no plan on this cluster can beat, however
// long one searches. docs/explanation/bounds.md defines and proves each.
#pragma once

#include <vector>

#include "baechi/base/cancel.h"
#include "baechi/cost/cost_model.h"
#include "baechi/schedule/plan.h"

namespace baechi {

// Valid for every feasible plan (devices that can run their operators, pins, colocation and
// capacities kept), in every order and communication mode, whatever the times: communication may
// exceed computation. The strongest first, ties by name. Empty when it is plain that no plan is
// feasible; when none is and that is not plain, the numbers mean nothing. Near-linear in
// operators + edges. Throws Cancelled when asked to stop.
std::vector<NamedBound> lower_bounds(const CostModel& costs, const CancelFlag* cancel = nullptr);

}  // namespace baechi
