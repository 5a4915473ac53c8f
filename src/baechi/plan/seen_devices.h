// SPDX-License-Identifier: Apache-2.0
// How many of many equal devices the methods of a portfolio look at. Beyond the paper.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>

#include "baechi/cost/cost_model.h"
#include "baechi/cost/needed_devices.h"
#include "baechi/plan/attempt/attempt.h"
#include "baechi/plan/request/request.h"
#include "baechi/schedule/schedule.h"

namespace baechi {

// The list schedulers on the graph as it is, whose time hardly depends on the number of devices
// (list_scheduler.h), and what they tell of it.
struct FirstPlans {
  static constexpr std::size_t kFewDevices = 32;  // so many are seen in any case

  std::optional<Time> step;  // of m-ETF's plan, as it is executed; absent if that does not fit
  std::optional<PlacedGraph> placed;   // that plan
  KnownPlans known;                    // as the list schedulers made them
  std::int64_t work = 0;               // that they took, about, in simulated operators
  std::optional<std::size_t> devices;  // that they use, the larger number; absent: one has no plan
};
FirstPlans first_plans(const CostModel& costs, const PlanRequest& request);

// Of every run of equal devices the first ones: more than the list schedulers use of all, a power
// of two, and 16 at least. List schedulers take an idle device wherever an operator could start
// earlier, so that beyond theirs others find little to do. Nothing when that is more than half of
// the cluster. The costs must outlive the result.
std::unique_ptr<const NeededDevices> devices_to_see(const CostModel& costs,
                                                    const FirstPlans& plans);

}  // namespace baechi
