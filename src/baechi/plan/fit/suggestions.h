// SPDX-License-Identifier: Apache-2.0
// What would do where nothing fits: more memory, or more devices.
#pragma once

#include <cstddef>
#include <optional>

#include "baechi/base/cancel.h"
#include "baechi/base/units.h"
#include "baechi/cost/cost_model.h"
#include "baechi/schedule/execution_order.h"

namespace baechi {

struct SuggestOptions {
  double budget = 1.0;  // as PlanRequest's; the searches take about as much, each
  ExecutionOrder order = ExecutionOrder::kPlanned;
  const CancelFlag* cancel = nullptr;
};

// The smallest capacity, equal on all devices, for which a placement was found, and the smallest
// number of devices (adding ones like the largest, up to 64 in all). Searches: the true values
// may be smaller. Absent when nothing was found.
std::optional<Bytes> smallest_equal_capacity(const CostModel& costs, const SuggestOptions& options);
std::optional<std::size_t> smallest_device_count(const CostModel& costs,
                                                 const SuggestOptions& options);

}  // namespace baechi
