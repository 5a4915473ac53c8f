// SPDX-License-Identifier: Apache-2.0
// When moving operators off full devices is not enough: a random walk over placements and orders
// together that follows the memory that is missing. Beyond the paper.
#pragma once

#include <cstdint>
#include <optional>

#include "baechi/base/cancel.h"
#include "baechi/cost/cost_model.h"
#include "baechi/plan/fit/memory_needs.h"
#include "baechi/schedule/execution_order.h"
#include "baechi/schedule/schedule.h"

namespace baechi {

struct FitWalkOptions {
  std::int64_t simulated_ops = 2'000'000;  // work limit: the outcome does not depend on the clock
  std::uint64_t seed = 1;
  ExecutionOrder order = ExecutionOrder::kPlanned;  // another leaves placements to walk over
  const CancelFlag* cancel = nullptr;
};

struct FitWalked {
  std::optional<PlacedGraph> placed;  // as it is executed; simulated, and fits
  std::int64_t work = 0;              // in simulated operators
};

// Starts again and again, from random placements on some of the devices and random topological
// orders, and takes random steps that leave not much more memory missing than before. Requires that
// every unit may run on some device.
FitWalked walk_to_fit(const CostModel& costs, const Units& units, const FitWalkOptions& options);

}  // namespace baechi
