// SPDX-License-Identifier: Apache-2.0
// When the threads that ask devices for work have asked for what (docs/reference/semantics.md, "The host
// that asks"). Beyond the paper.
#pragma once

#include <span>
#include <vector>

#include "baechi/base/id.h"
#include "baechi/base/units.h"
#include "baechi/cost/cost_model.h"
#include "baechi/schedule/schedule.h"

namespace baechi::simulation {

// All operators in the order in which they start, each device's own order kept where several start
// and end at one moment.
std::vector<OpId> order_of_starts(const OpGraph& graph, const DeviceOrder& order,
                                  const IdVector<OpId, OpSlot>& slots);

// For every operator, when its host has asked for it, and for all before it in `sequence` with
// their transfers. Its own transfers follow, by tensor and destination. Requires a cluster with a
// host time.
void ask(const CostModel& costs, const Placement& placement, std::span<const OpId> sequence,
         IdVector<OpId, Time>& asked);

}  // namespace baechi::simulation
