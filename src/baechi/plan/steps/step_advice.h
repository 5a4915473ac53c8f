// SPDX-License-Identifier: Apache-2.0
// What would do where a step of micro-batches fits nowhere: more memory, more devices. Beyond the
// paper.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "baechi/base/cancel.h"
#include "baechi/base/units.h"
#include "baechi/cost/cost_model.h"
#include "baechi/graph/unroll.h"
#include "baechi/plan/request/budget.h"

namespace baechi {

// Plans on another cluster with so much. The highest peak of the
// plan; nothing where none was found.
using PeakOn = std::function<std::optional<Bytes>(const Cluster&, Budget budget)>;

struct AdviceOptions {
  Budget budget;  // half for devices, what is left for memory
  const CancelFlag* cancel = nullptr;
};

struct StepAdvice {
  std::optional<Bytes> smallest_capacity;   // equal on all devices
  std::optional<std::size_t> more_devices;  // in all
  bool cut_short = false;                   // there was no work for finding either
  std::int64_t work = 0;                    // that it took, about, in simulated operators
};

// Both were planned a second time with what was left of the budget. `steps` are those of the numbers
// of micro-batches that are asked for. A plan costs more the larger the step is: of large ones
// there are few, with little of the budget each.
StepAdvice advice_on(const std::vector<Unrolled>& steps, const Cluster& cluster,
                     const PeakOn& peak_on, const AdviceOptions& options);

}  // namespace baechi
