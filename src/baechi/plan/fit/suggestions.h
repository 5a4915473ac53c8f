// SPDX-License-Identifier: Apache-2.0
// What would do where nothing fits: more memory, or more devices.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "baechi/base/cancel.h"
#include "baechi/base/units.h"
#include "baechi/cost/cost_model.h"
#include "baechi/plan/request/budget.h"
#include "baechi/schedule/execution_order.h"

namespace baechi {

struct SuggestOptions {
  Budget budget;  // at most half of it is for devices, the rest for memory
  ExecutionOrder order = ExecutionOrder::kPlanned;
  const CancelFlag* cancel = nullptr;
};

// Found by searches: the true values may be smaller, and a longer budget may find smaller ones.
struct Suggestions {
  std::optional<Bytes> smallest_capacity;   // equal on all devices
  std::optional<std::size_t> more_devices;  // in all, adding ones like the largest, at most 64
  bool cut_short = false;                   // there was no work for finding any
  std::int64_t work = 0;                    // that it took, in simulated operators
};
Suggestions suggest(const CostModel& costs, const SuggestOptions& options);

}  // namespace baechi
