// SPDX-License-Identifier: Apache-2.0
// What would do where a step of micro-batches fits nowhere: more memory, more devices. Beyond the
// paper.
#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <vector>

#include "baechi/base/cancel.h"
#include "baechi/base/units.h"
#include "baechi/cost/cost_model.h"
#include "baechi/graph/unroll.h"

namespace baechi {

// Plans on another cluster with a part of the budget, 1 being all of it. The highest peak of the
// plan; nothing where none was found.
using PeakOn = std::function<std::optional<Bytes>(const Cluster&, double part)>;

struct StepAdvice {
  std::optional<Bytes> smallest_capacity;  // equal on all devices
  std::optional<std::size_t> more_devices;
};

// Both were planned with all of the budget: whoever asks for them the same way gets a plan. `steps`
// are those of the numbers of micro-batches that are asked for. About twenty plans for each, with a
// fifth of the budget of a small step and less of a large one.
StepAdvice advice_on(const std::vector<Unrolled>& steps, const Cluster& cluster,
                     const PeakOn& peak_on, const CancelFlag* cancel);

}  // namespace baechi
