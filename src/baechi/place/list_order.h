// SPDX-License-Identifier: Apache-2.0
// Good device orders for a placement that is given: list scheduling with the longest path still
// ahead as priority. Beyond the paper.
#pragma once

#include "baechi/base/id.h"
#include "baechi/base/units.h"
#include "baechi/cost/cost_model.h"
#include "baechi/schedule/schedule.h"

namespace baechi {

// From each operator's start to the end of the step at the soonest: compute and transfer times
// along the longest path, on the devices of the placement.
IdVector<OpId, Time> longest_path_ahead(const CostModel& costs, const Placement& placement);

// A device that is free starts, of its operators that can start, the one with the longest path
// ahead; transfers wait in their queues about as in the simulator. Free of deadlock.
// O((ops + edges) log ops + ops * devices).
DeviceOrder list_order(const CostModel& costs, const Placement& placement);

}  // namespace baechi
