// SPDX-License-Identifier: Apache-2.0
// refine: local search from any plan, guided by the critical path of its simulated schedule. Beyond
// the paper.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>

#include "baechi/base/cancel.h"
#include "baechi/base/processor_time.h"
#include "baechi/base/units.h"
#include "baechi/cost/cost_model.h"
#include "baechi/graph/repetition.h"
#include "baechi/plan/fit/memory_needs.h"
#include "baechi/schedule/execution_order.h"
#include "baechi/schedule/schedule.h"

namespace baechi {

// A graph is small up to so many operators: there searches can afford detours.
inline constexpr std::size_t kSmallGraph = 64;

struct RefineOptions {
  // How much to search, in the local search's units (plan/search/local_search.h): the result depends on it
  // and on the seed alone, not on the clock and not on the number of threads.
  std::int64_t work = 5'000'000;
  // After so much of it the search ends: a longer one does the same, and goes on.
  std::int64_t end = work;
  std::uint64_t seed = 1;
  unsigned threads = 1;
  ExecutionOrder order = ExecutionOrder::kPlanned;  // only a planned one is searched, too
  // Emergency brakes: stop early, with the best so far.
  const ProcessorTimeLimit* brake = nullptr;
  const CancelFlag* cancel = nullptr;
  const Images* images = nullptr;  // of the graph, if it repeats
  // Told now and then of the best step so far, by the thread that calls refine().
  std::function<void(Time)> on_better = {};
};

struct Refined {
  PlacedGraph placed;  // as it is executed, as good as the start or better, and it fits
  Time makespan;
  std::int64_t evaluations = 0;
  bool stopped_early = false;  // by one of the brakes
};

// The start in the order in which it ran. Operators that take no time may run in an order that
// cannot be read off the schedule, so this may be another plan, and need not fit: then nothing.
std::optional<PlacedGraph> in_order(const CostModel& costs, const PlacedGraph& start,
                                    ExecutionOrder order);

// How many moves there is work for, about.
std::int64_t moves_in(std::int64_t work, const OpGraph& graph);
// To begin takes as long as some moves: with fewer than those a search is not worth it.
inline constexpr std::int64_t kFewMoves = 6;

// Requires a start that fits as it is executed. Never throws Cancelled: anytime means the best so far.
Refined refine(const CostModel& costs, const Units& units, const PlacedGraph& start,
               const RefineOptions& options);

}  // namespace baechi
