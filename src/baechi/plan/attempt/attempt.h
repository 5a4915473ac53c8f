// SPDX-License-Identifier: Apache-2.0
// One method's try at a graph: what it placed, or why it could not, and which fall-backs it took.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "baechi/base/cancel.h"
#include "baechi/cost/cost_model.h"
#include "baechi/optimize/optimize.h"
#include "baechi/place/placer.h"
#include "baechi/plan/fit/any_fit.h"
#include "baechi/plan/fit/memory_needs.h"
#include "baechi/schedule/plan.h"
#include "baechi/simulate/execution_simulator.h"

namespace baechi {

// The graph as the Graph Optimizer made it, with what placing it needs.
struct Shrunk {
  Shrunk(const CostModel& costs, const OptimizeOptions& options);
  Shrunk(const Shrunk&) = delete;  // `costs` refers to `optimized`
  Shrunk& operator=(const Shrunk&) = delete;

  Optimized optimized;
  CostModel costs;
};

// Plans that are known beforehand: what each placer makes of the graph as it is.
using KnownPlans = std::vector<std::pair<Placer, PlacedGraph>>;

// What an attempt works on. All refer to one graph on one cluster and must outlive it.
struct Problem {
  const CostModel& costs;
  const Units& units;
  const Shrunk* shrunk = nullptr;     // absent: methods place the graph as it is
  LastResort* last_resort = nullptr;  // absent: one of its own
  ExecutionOrder order = ExecutionOrder::kPlanned;
  bool fits = false;   // some plan does: others are worth no more than methods may take
  bool paper = false;  // one try, in the order in which operators become ready, and no fall-backs
  const KnownPlans* known = nullptr;  // of these costs, with the options that methods start with
};

// About what a placer takes, in simulated operators.
std::int64_t work_of(const PlacerEntry& placer, const CostModel& costs);

struct Attempt {
  std::string method;
  const PlacerEntry* placer = nullptr;  // absent: a search that started from other attempts
  bool optimized = false;               // placed on the optimised graph and expanded
  bool at_home = false;                 // if so: its groups stay on the devices they were cut for
  std::optional<PlacedGraph> placed;    // as it is executed; it fits, by simulation
  Time makespan;                        // of `placed`
  IdVector<DeviceId, Bytes> peaks;      // of `placed`
  std::int64_t nanoseconds = 0;         // wall time the attempt took; never part of a result
  std::vector<std::string> fallbacks;
  std::optional<DoesNotFit> misfit;  // where the method's own choices ran out of room
  std::string reason;                // when there is no placement
  bool proved = false;               // all placements were tried
  bool gave_up = false;              // before all tries with more care: there was no work left
  // Until they are repaired: the first that had no room, and that of the graph as it is, which comes
  // after the optimised one.
  struct Misfit {
    PlacedGraph placed;
    Time makespan;
  };
  std::optional<Misfit> misfit_plan = {}, misfit_as_given = {};

  bool may_be_repaired() const { return !placed.has_value() && !placer->baseline; }
};

// Runs `placer`, on the optimised graph when there is one and the placer is one of the paper's.
// When its plan does not fit (and it is no baseline), falls back in this order: "headroom" keeps
// part of each device for operators that can go nowhere else (list schedulers), "reserve" sets
// memory aside for every output, "cut" takes the optimizer's cut in the order in which it fits
// (list schedulers), "unoptimized" places the graph as it is.
Attempt own_choices(const Problem& problem, const PlacerEntry& placer, const PlaceOptions& options);

// Of one that ended with nothing: "repair" moves operators off the devices that run over; then,
// once for all methods, "packing" places by memory alone, "reordering" walks over placements and
// orders together, and "enumeration" rules out or finds (graphs that `exact` takes only).
void repair(const Problem& problem, const CancelFlag* cancel, Attempt& attempt);

// Both, but for baselines.
Attempt attempt(const Problem& problem, const PlacerEntry& placer, const PlaceOptions& options);

// Takes the placement if it fits and is faster than what `attempt` has. True if so.
bool offer_placement(const Problem& problem, const PlacedGraph& placed, Attempt& attempt);

// The first with the shortest step; nothing where none has a placement.
const Attempt* best_of(std::span<const Attempt> attempts);

MethodOutcome outcome_of(const Attempt& attempt);

}  // namespace baechi
