// SPDX-License-Identifier: Apache-2.0
// Random placements and orders to replay.
#pragma once

#include <optional>

#include "baechi/base/random.h"
#include "baechi/cost/cost_model.h"
#include "baechi/schedule/schedule.h"

namespace baechi::testing {

// Every operator on some device that keeps its pin and suits all of its colocation group; absent
// when an operator or a group has none.
std::optional<Placement> random_placement(const CostModel& costs, Random& random);

// Per device, the operators in the order of one random topological order of the whole graph.
DeviceOrder random_order(const CostModel& costs, const Placement& placement, Random& random);

}  // namespace baechi::testing
