// SPDX-License-Identifier: Apache-2.0
// What can be wrong with a placement that is to be replayed, in the user's words.
#pragma once

#include <vector>

#include "baechi/base/id.h"
#include "baechi/cost/cost_model.h"
#include "baechi/schedule/schedule.h"

namespace baechi::simulation {

// Throws InputError unless there is one device per operator and, with an order, one list per
// device.
void check_sizes(const CostModel& costs, const PlacedGraph& placed);

// All throw InputError.
[[noreturn]] void throw_cannot_run(const CostModel& costs, OpId op, DeviceId device);
[[noreturn]] void throw_bad_order(const CostModel& costs, const PlacedGraph& placed);
// `next[device]` is how many operators of its list the device had finished when nothing moved.
[[noreturn]] void throw_stuck(const CostModel& costs, const PlacedGraph& placed,
                              const IdVector<DeviceId, std::size_t>& finished);

}  // namespace baechi::simulation
