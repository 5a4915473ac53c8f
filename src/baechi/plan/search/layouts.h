// SPDX-License-Identifier: Apache-2.0
// Placements of a graph that repeats, replayed, and the shortest of them. Beyond the paper.
#pragma once

#include <optional>
#include <vector>

#include "baechi/base/units.h"
#include "baechi/cost/cost_model.h"
#include "baechi/plan/request/request.h"
#include "baechi/schedule/schedule.h"

namespace baechi {

// A placement as it will be executed.
struct ReplayedLayout {
  PlacedGraph placed;
  Time makespan;
  bool fits;
};

// The first of the shortest of some.
struct ShortestLayout {
  std::optional<ReplayedLayout> of_all, fitting;

  void add(const ReplayedLayout& laid);
  void add(const ShortestLayout& others);
};

// On the request's threads.
ShortestLayout shortest_of(const CostModel& costs, const std::vector<Placement>& layouts,
                           const PlanRequest& request);

}  // namespace baechi
