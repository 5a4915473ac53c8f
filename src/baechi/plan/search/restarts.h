// SPDX-License-Identifier: Apache-2.0
// More partitions and cuts, as starts for a search: they differ by their seed, much more than by
// what local search makes of them. Beyond the paper.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "baechi/base/units.h"
#include "baechi/cost/cost_model.h"
#include "baechi/place/placer.h"
#include "baechi/plan/fit/memory_needs.h"
#include "baechi/schedule/schedule.h"

namespace baechi {

struct RestartOptions {
  std::int64_t work = 0;            // for all of them, in simulated operators
  const PlaceOptions& place;        // the seeds that follow on its own are taken
  unsigned threads = 1;             // the result does not depend on them
  std::function<bool()> must_stop;  // asked from all threads
  // Given, in planned orders: where the first ones do not fit, or are longer by more than 3%, there are
  // no more, and repairs of all that lack memory have as much work again.
  std::optional<Time> to_beat = {};
};

struct Restarts {
  struct Found {
    PlacedGraph placed;        // may not fit
    std::optional<Time> step;  // where it is known
    bool lacks = false;        // memory, while it is looked for
  };
  std::vector<Found> plans;
  std::int64_t work = 0;  // that they took
};

// None where one alone would take more than the work.
Restarts further_partitions(const CostModel& costs, const RestartOptions& options);
Restarts further_cuts(const CostModel& costs, const Units& units, const RestartOptions& options);

// What hardly runs over is a few moves away from a plan that fits, and usually much faster than what
// is made by memory alone.
struct Repaired {
  std::optional<PlacedGraph> placed;
  std::int64_t work = 0;  // that it took, in simulated operators
};
Repaired repaired(const CostModel& costs, const Units& units, const PlacedGraph& placed,
                  ExecutionOrder order);

}  // namespace baechi
