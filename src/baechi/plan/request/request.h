// SPDX-License-Identifier: Apache-2.0
// What is asked for: a method, its options, and how much it may spend.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "baechi/base/units.h"
#include "baechi/optimize/optimize.h"
#include "baechi/place/placer.h"
#include "baechi/plan/request/budget.h"
#include "baechi/schedule/plan.h"

namespace baechi {

// The budget where many plans are made, for each of them.
inline constexpr Budget kBudgetOfMany = 0.2;

// Which forward operators run a second time, so that what they make need not be held
// (graph/recomputation.h).
enum class Recompute : std::uint8_t { kNone, kAuto, kAll };

// Which tensors are kept in a host's memory while no device reads them (graph/residency.h).
enum class AwayChoice : std::uint8_t { kNone, kAuto, kAll };

struct SearchNews {  // the best so far
  std::optional<Time> step = {};
  std::string method = {};         // who found it
  std::optional<Time> bound = {};  // of every plan

  std::string in_words() const;  // "12.3 ms by refine, no plan is below 11.0 ms"; it has a step
};

// A search for a plan of a graph as it is; what may be asked is in plan/request/planner_options.h.
struct PlanRequest {
  std::string method = "auto";  // a placer's name, or one of portfolio_methods()
  PlaceOptions place = {};
  OptimizeOptions optimize = {};  // for the paper's methods
  bool paper = false;             // to the letter: plan/request/paper.h
  // How long `auto` and `refine` may search, and any method for a plan that fits when its own does
  // not. After several times as much processor time a search is stopped, and a note says so.
  Budget budget = 1;
  std::optional<Budget> budget_to_fit = {};  // for a plan that fits, if not the same
  unsigned threads = 1;                      // changes how long it takes, never the plan
  // Of methods that search: a step may be 0.3% longer for a plan in fewer pieces, not 0.05%.
  bool tidy = false;
  // Told of every better step, and bound, by one thread at a time.
  std::function<void(const SearchNews&)> watch = {};
  bool bounds = true;   // also compute the lower bounds
  bool suggest = true;  // when nothing fits, search for what would

  // One search of several: it has a part of the budget, and says nothing but what its plan is.
  PlanRequest within(Budget part) const;
};

// A search for a step, whose graph is made of the one that is given.
struct StepRequest {
  PlanRequest search = {};
  // Numbers of micro-batches that a step may consist of; an empty list: whichever is best; absent:
  // one. The mini-batch is how many samples they are.
  std::optional<std::vector<std::uint32_t>> micro_batches = {};
  std::optional<std::int64_t> mini_batch = {};
  // Numbers of replicas that share a step of micro-batches, in the same way.
  std::optional<std::vector<std::uint32_t>> replicas = {};
  // Absent: none, but kAuto where residency is, what is best of all.
  std::optional<Recompute> recompute = {};
  AwayChoice residency = AwayChoice::kNone;
  // With residency: an operator's copies for several micro-batches need not share a device.
  bool copies_apart = false;
  // Where residency is kAuto: a plan of the same graph for the same devices, on less memory, say,
  // from which the search begins. The step is never longer than that plan's, if it fits.
  const Plan* known = nullptr;

  Recompute second_runs() const { return recompute.value_or(Recompute::kNone); }
};

}  // namespace baechi
