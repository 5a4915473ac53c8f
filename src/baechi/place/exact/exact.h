// SPDX-License-Identifier: Apache-2.0
// exact: branch and bound over all plans of a small graph. Beyond the paper.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "baechi/base/cancel.h"
#include "baechi/base/id.h"
#include "baechi/base/units.h"
#include "baechi/cost/cost_model.h"
#include "baechi/schedule/schedule.h"

namespace baechi {

struct ExactOptions {
  // How much to search, in operators looked at (about as many as the simulator replays in the same
  // time): the result depends on it, not on the clock.
  std::int64_t work = 50'000'000;
  const PlacedGraph* start = nullptr;  // a plan to beat; ignored when it does not fit
  // Topological: operators are decided along it, and of equal choices the first in it is tried
  // first. Empty: those with the longest path ahead first, then by id. What a search that is
  // stopped has seen depends on it.
  std::span<const OpId> sequence = {};
  const CancelFlag* cancel = nullptr;  // stops the search with what it has
  bool any = false;                    // the first plan that fits will do
};

struct ExactResult {
  std::optional<PlacedGraph> placed;  // the best plan seen, with its order; it fits
  Time makespan;                      // of `placed`
  // No plan is faster. With `complete` it is the makespan; with no plan either, it means nothing.
  Time bound;
  bool complete = false;  // `placed` is an optimum, or nothing fits at all
  bool cancelled = false;
  std::int64_t work = 0;  // that was done
};

// Whether solve_exactly() can search a graph on a cluster at all: at most 64 operators and 32
// devices. Beyond that it returns its start and a bound.
bool is_searchable(const CostModel& costs);

// All placements (pins, colocation and kinds kept) in all device orders, under the rules of
// docs/reference/semantics.md. Best first over placements, which docs/explanation/planner.md
// describes; never throws Cancelled. Time and memory grow exponentially with the number of
// operators.
ExactResult solve_exactly(const CostModel& costs, const ExactOptions& options);

}  // namespace baechi
