// SPDX-License-Identifier: Apache-2.0
// One order of all operators that a plan's device orders agree with; beyond the paper.
#pragma once

#include <vector>

#include "baechi/base/id.h"
#include "baechi/graph/op_graph.h"
#include "baechi/schedule/schedule.h"

namespace baechi {

// Parents before children, and each device's operators in its order; free choices go to the
// smallest rank in the topological order. Any device orders taken from it are free of deadlock.
// Throws InputError when the device orders wait for each other. O((ops + edges) log ops).
std::vector<OpId> plan_order(const OpGraph& graph, const DeviceOrder& order);

// The restriction of a sequence of all operators to each device.
DeviceOrder device_order(const std::vector<OpId>& sequence, const Placement& placement,
                         std::size_t num_devices);

}  // namespace baechi
