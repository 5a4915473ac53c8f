// SPDX-License-Identifier: Apache-2.0
// Residencies for one placement and order, compared on the replay. Beyond the paper.
#pragma once

#include <optional>

#include "baechi/base/units.h"
#include "baechi/cost/cost_model.h"
#include "baechi/graph/residency.h"
#include "baechi/plan/residency/residency_choice.h"
#include "baechi/schedule/schedule.h"

namespace baechi {

struct FoundResidency {
  Residency residency;
  PlacedGraph placed;  // of residing(graph, residency)
  Time makespan;
  bool fits = false;
  Bytes over;        // what the fullest device lacks
  Bytes step_needs;  // what that one holds
};

// The shortest step of those that fit, else the one that lacks least. `all`: nothing stays that may be away.
std::optional<FoundResidency> find_residency(const CostModel& costs, ResidencyStart start,
                                             bool all);

}  // namespace baechi
