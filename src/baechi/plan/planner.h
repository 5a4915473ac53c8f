// SPDX-License-Identifier: Apache-2.0
// From a graph and a cluster to a plan that is simulated, verified and within every capacity, or to
// a reason why there is none that a user can act on.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "baechi/base/cancel.h"
#include "baechi/cost/cost_model.h"
#include "baechi/optimize/optimize.h"
#include "baechi/place/placer.h"
#include "baechi/schedule/plan.h"
#include "baechi/simulate/execution_simulator.h"

namespace baechi {

// PlanRequest's budget where many plans are made, for each of them.
inline constexpr double kBudgetOfMany = 0.2;

// Which forward operators run a second time, so that what they make need not be held
// (graph/recomputation.h).
enum class Recompute : std::uint8_t { kNone, kAuto, kAll };

struct SearchNews {  // the best so far
  std::optional<Time> step = {};
  std::string method = {};         // who found it
  std::optional<Time> bound = {};  // of every plan
};

// What may be asked is in plan/request/planner_options.h.
struct PlanRequest {
  std::string method = "auto";  // a placer's name, or one of portfolio_methods()
  PlaceOptions place = {};
  OptimizeOptions optimize = {};  // for the paper's methods
  // How long `auto` and `refine` may search, and any method for a plan that fits when its own does
  // not, in seconds of one core of a current machine. It sets an amount of work, not a clock, so
  // that equal input gives an equal plan; after several times as much processor time it is stopped,
  // and then a note in the plan says so.
  double budget = 1.0;
  std::optional<double> budget_to_fit = {};  // for a plan that fits, if not the same
  unsigned threads = 1;                      // changes how long it takes, never the plan
  // Of the plans that the methods make, take the one whose longest step is the shortest when costs
  // are off by up to this part (0 to 1), instead of the one with the shortest step.
  std::optional<double> robust = {};
  // Numbers of micro-batches that a step may consist of; an empty list: whichever is best; absent:
  // one. Looked at by make_step_plan() alone, as is the mini-batch: how many samples they are.
  std::optional<std::vector<std::uint32_t>> micro_batches = {};
  std::optional<std::int64_t> mini_batch = {};
  // Looked at by make_step_plan() alone: make_plan() plans the graph that it is given.
  Recompute recompute = Recompute::kNone;
  bool improvements = false;  // keep in the plan when which step was found, and by whom
  // Told of every better step, and bound, by one thread at a time.
  std::function<void(const SearchNews&)> watch = {};
  bool bounds = true;   // also compute the lower bounds
  bool suggest = true;  // when nothing fits, search for what would
};

// No plan: which operator, how many bytes, and what would do.
struct Unplaceable {
  std::optional<OpId> op;  // the operator, or first of its group, that found no room
  Bytes short_by;
  bool proved = false;                      // by arithmetic, or because every placement was tried
  std::string reason;                       // one sentence
  std::optional<Bytes> smallest_capacity;   // equal on all devices, that a plan was found for
  std::optional<std::size_t> more_devices;  // devices in all, adding ones like the largest
  std::vector<MethodOutcome> methods;
  // The step of a plan with recomputation that does fit, if one was looked for and found.
  std::optional<Time> step_with_recomputation = {};

  std::string in_words() const;  // reason and suggestions
};

using PlanResult = std::variant<Plan, Unplaceable>;

struct MethodTime {
  std::string method;
  std::int64_t nanoseconds;
};
struct PlanTimes {  // how long it took; kept out of the plan, which depends on input alone
  std::vector<MethodTime> methods;
  std::vector<Time> passes;  // of the Graph Optimizer, CPU time
};

// Throws InputError for an unknown method and Cancelled when asked to stop. Fills `times`, if
// given, in the order of the plan's methods and passes.
PlanResult make_plan(const CostModel& costs, const PlanRequest& request,
                     PlanTimes* times = nullptr);

struct SuggestOptions {
  double budget = 1.0;  // as PlanRequest's; the searches take about as much, each
  ExecutionOrder order = ExecutionOrder::kPlanned;
  const CancelFlag* cancel = nullptr;
};

// The smallest capacity, equal on all devices, for which a placement was found, and the smallest
// number of devices (adding ones like the largest, up to 64 in all). Searches: the true values
// may be smaller. Absent when nothing was found.
std::optional<Bytes> smallest_equal_capacity(const CostModel& costs, const SuggestOptions& options);
std::optional<std::size_t> smallest_device_count(const CostModel& costs,
                                                 const SuggestOptions& options);

// What the simulator saw, as a plan keeps it.
IdVector<DeviceId, PlanDevice> plan_devices(const Trace& trace);

// The plan of a placement that is known to fit as an executor of that order runs it: simulates,
// verifies (a violation is an InternalError: our bug), and fills in everything but the table of
// methods.
Plan plan_of(const CostModel& costs, const PlacedGraph& placed, const std::string& method,
             bool bounds, ExecutionOrder order = ExecutionOrder::kPlanned);

// The plan as an executor of that order runs it on the cluster of `costs`, which has as many
// devices. It need not fit; bounds, methods and passes are not about it and are gone.
// The same plan with what this trace of it tells.
Plan retold(const Plan& plan, const CostModel& costs, Trace trace, ExecutionOrder order);
Plan replayed(const Plan& plan, const CostModel& costs, ExecutionOrder order,
              const CancelFlag* cancel = nullptr);

// A plan that was made for devices of other capacities, for the cluster of `costs`: what runs where
// and when stays, bounds (if it has any) and gap are those of this cluster, and a note names the
// devices that it was planned with less memory for. Throws InputError when the clusters differ in
// anything but capacities, or a device holds more than it has here.
Plan plan_with_capacities(Plan plan, const CostModel& costs);

}  // namespace baechi
