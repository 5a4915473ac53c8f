// SPDX-License-Identifier: Apache-2.0
// One method's try at a graph: what it placed, or why it could not, and which fall-backs it took.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "baechi/base/cancel.h"
#include "baechi/cost/cost_model.h"
#include "baechi/place/placer.h"
#include "baechi/plan/memory_needs.h"
#include "baechi/schedule/plan.h"
#include "baechi/simulate/execution_simulator.h"

namespace baechi {

struct Attempt {
  std::string method;
  std::optional<PlacedGraph> placed;  // it fits, by simulation
  Time makespan;                      // of `placed`
  IdVector<DeviceId, Bytes> peaks;    // of `placed`
  std::int64_t nanoseconds = 0;       // wall time the attempt took; never part of a result
  std::vector<std::string> fallbacks;
  std::optional<DoesNotFit> misfit;   // where the method's own choices ran out of room
  std::string reason;                 // when there is no placement
  bool proved = false;                // all placements were tried
};

// Runs `placer`; when its plan does not fit (and it is no baseline), falls back in this order:
// "reserve" sets memory aside for every output, "repair" moves operators off the devices that run
// over, "packing" places by memory alone, "enumeration" tries everything (small graphs only).
Attempt attempt(const CostModel& costs, const Units& units, const PlacerEntry& placer,
                const PlaceOptions& options);

// Any placement that fits, as cheaply as one can be found; nothing if none was.
std::optional<PlacedGraph> find_any_fit(const CostModel& costs, const Units& units,
                                        std::int64_t simulated_ops, const CancelFlag* cancel);

MethodOutcome outcome_of(const Attempt& attempt);

}  // namespace baechi
