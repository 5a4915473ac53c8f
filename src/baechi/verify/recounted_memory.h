// SPDX-License-Identifier: Apache-2.0
// The verifier's own account of what a timed plan holds on every device.
#pragma once

#include <vector>

#include "baechi/base/id.h"
#include "baechi/base/units.h"
#include "baechi/graph/op_graph.h"
#include "baechi/schedule/schedule.h"

namespace baechi {

struct HeldMost {
  Bytes bytes;  // the peak
  Time at;      // the first moment that has it
};

// The peak of every device. `order` lists each device's operators by start, those that take no time
// before the one that starts at the same moment. Requires that the schedule keeps every rule of
// timing. O(operators + edges + transfers log transfers).
IdVector<DeviceId, HeldMost> peaks(const OpGraph& graph, const Schedule& schedule,
                                   const DeviceOrder& order);

}  // namespace baechi
