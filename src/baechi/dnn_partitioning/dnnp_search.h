// SPDX-License-Identifier: Apache-2.0
// Placing for the objectives of the dnn-partitioning research: segments of good orders by dynamic
// programming, then local search under the objective itself. Beyond the paper.
#pragma once

#include <cstdint>
#include <optional>
#include <variant>

#include "baechi/base/cancel.h"
#include "baechi/base/units.h"
#include "baechi/cost/cost_model.h"
#include "baechi/dnn_partitioning/dnnp_score.h"
#include "baechi/place/placer.h"

namespace baechi {

struct DnnpOptions {
  // How long to search, in seconds of one core of a current machine; it sets an amount of work,
  // not a clock. The segments alone take milliseconds. The bound may take as long again.
  double budget = 1.0;
  std::uint64_t seed = 1;
  // An emergency brake: stop early, with the best so far.
  const CancelFlag* cancel = nullptr;
};

struct DnnpPlacement {
  Placement device;
  Time value;     // of the objective
  Time segments;  // what the dynamic program alone had reached
  // Max-load: no placement that keeps colocation, pins and kinds is below it.
  std::optional<Time> bound = {};
  bool stopped_early = false;
};

// Colocation groups, pins and kinds are kept; memory is the permanent memory on each accelerator,
// as the objectives have it. Every accelerator is one call. Equal input gives an equal placement.
// Never throws Cancelled.
std::variant<DnnpPlacement, DoesNotFit> place_for(const CostModel& costs, DnnpObjective objective,
                                                  const DnnpOptions& options = {});

}  // namespace baechi
