// SPDX-License-Identifier: Apache-2.0
// What each device runs in the forward pass, as the choice of what to keep looks at it. Beyond the
// paper.
#pragma once

#include <cstddef>
#include <vector>

#include "baechi/base/id.h"
#include "baechi/cost/cost_model.h"
#include "baechi/plan/recompute/keep_or_recompute.h"
#include "baechi/plan/recompute/second_runs.h"
#include "baechi/schedule/schedule.h"

namespace baechi {

// The forward runs of a device in a sequence, and which operators they are.
struct DeviceRuns {
  std::vector<ForwardRun> runs;
  std::vector<OpId> ops;
};

// By device; without a placement all are on one.
std::vector<DeviceRuns> forward_runs(const CostModel& costs, const SecondRuns& may,
                                     const std::vector<OpId>& sequence, const Placement* placement,
                                     std::size_t num_devices);

}  // namespace baechi
