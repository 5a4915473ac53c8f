// SPDX-License-Identifier: Apache-2.0
#include "baechi/plan/recompute.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "baechi/base/assert.h"
#include "baechi/base/error.h"
#include "baechi/base/short_text.h"
#include "baechi/bounds/lower_bounds.h"
#include "baechi/cost/cost_model.h"
#include "baechi/plan/budget.h"
#include "baechi/plan/memory_needs.h"
#include "baechi/plan/planner_options.h"
#include "baechi/plan/portfolio.h"
#include "baechi/plan/recompute_search.h"
#include "baechi/schedule/execution_order.h"
#include "baechi/simulate/simulator.h"
#include "baechi/verify/check_recomputation.h"

namespace baechi {
namespace {

constexpr const char* kMethod = "recompute";

// Parts of the budget, beside what plans without second runs take.
constexpr double kStarts = 0.06;    // each plan to start from
constexpr double kChoices = 0.3;    // which operators run again
constexpr double kRefining = 0.15;  // where and when everything runs, twice

constexpr std::size_t kFewOps = 40;  // that are planned with all of the budget in any case
constexpr std::size_t kMostPlannedOften = 1'000;  // operators: more are only divided to start from

class Planning {
 public:
  Planning(const OpGraph& graph, const Cluster& cluster, const PlanRequest& request)
      : costs_(graph, cluster),
        request_(request),
        runs_(graph),
        room_(roomier(costs_, std::nullopt)),
        search_(costs_, runs_, request_,
                static_cast<std::int64_t>(static_cast<double>(work_of(request)) * kChoices)),
        order_(request.place.order) {
    request_.recompute = Recompute::kNone;
    request_.place.order = ExecutionOrder::kPlanned;  // which to run again is searched for in it
  }

  bool any() const { return runs_.any(); }
  const CostModel& costs() const { return costs_; }
  PlanResult plan_without(PlanTimes* times) const {
    PlanRequest request = request_;
    request.place.order = order_;
    request.suggest = false;
    return make_plan(costs_, request, times);
  }
  // By arithmetic, with or without second runs.
  bool cannot_fit() const { return prove_cannot_fit(costs_, Units(costs_)).has_value(); }
  // What would do where nothing fits, with second runs or without.
  void suggest(Unplaceable& answer) const {
    if (!request_.suggest) return;
    const SuggestOptions options{.budget = request_.budget, .cancel = request_.place.cancel};
    answer.smallest_capacity = smallest_equal_capacity(costs_, options);
    answer.more_devices = smallest_device_count(costs_, options);
    if (!any()) return;
    const OpGraph regions = recomputing(costs_.graph(), whole_regions());
    const CostModel again(regions, costs_.cluster());
    const auto take_smaller = [](auto& known, const auto& other) {
      if (other.has_value() && (!known.has_value() || *other < *known)) known = other;
    };
    take_smaller(answer.smallest_capacity, smallest_equal_capacity(again, options));
    take_smaller(answer.more_devices, smallest_device_count(again, options));
  }
  // Valid for plans with second runs: what they take more does not shorten anything, and the memory
  // that they save is not asked for.
  std::vector<NamedBound> bounds() const {
    if (!request_.bounds) return {};
    return lower_bounds(CostModel(costs_.graph(), room_), request_.place.cancel);
  }

  // Every region runs again; where the order was lost, it need not fit. Of few operators the plan is
  // as good as that of kAll.
  std::optional<RecomputePlan> all() {
    const bool few = costs_.graph().num_ops() <= kFewOps;
    return all_with(request_.budget * (few ? 1 : kStarts));
  }
  Recomputed plan_all(PlanTimes* times);

  // The shortest step found, in the order that is asked for.
  std::optional<RecomputePlan> find(const Plan* without);

 private:
  static std::int64_t work_of(const PlanRequest& request) {
    constexpr double kReplaysPerSecond = 5e6;
    return static_cast<std::int64_t>(request.budget * kReplaysPerSecond);
  }
  PlanRequest quick(double budget) const {
    PlanRequest request = request_;
    request.budget = budget;
    request.bounds = false;
    request.suggest = false;
    return request;
  }
  std::vector<Recomputation> whole_regions() const {
    const auto order = costs_.graph().topological_order();
    return runs_.in({order.begin(), order.end()}, search_.all()).again;
  }
  std::optional<RecomputePlan> find_in_planned_order(const Plan* without);
  std::optional<RecomputePlan> all_with(double budget);
  std::optional<RecomputePlan> in_program_order(const IdVector<OpId, bool>& chosen,
                                                const Placement* placement);

  const CostModel costs_;
  PlanRequest request_;
  const SecondRuns runs_;
  const Cluster room_;
  RecomputeSearch search_;
  const ExecutionOrder order_;  // that runs
};

std::optional<RecomputePlan> Planning::all_with(double budget) {
  RecomputePlan plan;
  plan.again = whole_regions();
  plan.graph = std::make_shared<const OpGraph>(recomputing(costs_.graph(), plan.again));
  const CostModel costs(*plan.graph, costs_.cluster());
  PlanResult result = make_plan(costs, quick(budget));
  auto* made = std::get_if<Plan>(&result);
  if (made == nullptr) return std::nullopt;
  // Operators that take no time may run in an order that cannot be read off the schedule: the order
  // that is read may be another one, which need not fit.
  plan.placed = placed_graph_of(*made, *plan.graph);
  search_.measure(plan, costs);
  return plan;
}

Recomputed Planning::plan_all(PlanTimes* times) {
  std::vector<Recomputation> again = whole_regions();
  OpGraph graph = recomputing(costs_.graph(), again);
  PlanRequest request = request_;
  request.place.order = order_;
  request.bounds = false;
  PlanResult result = make_plan(CostModel(graph, costs_.cluster()), request, times);
  if (Plan* plan = std::get_if<Plan>(&result)) {
    plan->recomputed = std::move(again);
    plan->bounds = bounds();
  }
  return {std::move(graph), std::move(result)};
}

// Where each second run stands is not the planner's to say: the same ones, placed for that order.
std::optional<RecomputePlan> Planning::in_program_order(const IdVector<OpId, bool>& chosen,
                                                        const Placement* placement) {
  const auto file = costs_.graph().topological_order();
  RecomputePlan plan;
  plan.again = runs_.in({file.begin(), file.end()}, chosen).again;
  if (plan.again.empty()) return std::nullopt;
  plan.graph = std::make_shared<const OpGraph>(recomputing(costs_.graph(), plan.again));
  const CostModel costs(*plan.graph, costs_.cluster());
  PlanRequest request = quick(request_.budget * kChoices);
  request.place.order = order_;
  const PlanResult result = make_plan(costs, request);
  if (const auto* made = std::get_if<Plan>(&result)) {
    plan.placed = placed_graph_of(*made, *plan.graph);
    plan.makespan = made->makespan();
  }
  if (placement == nullptr) return plan.placed.device.empty() ? std::nullopt : std::optional(plan);
  Placement given;
  for (const OpId op : costs_.graph().ops()) given.push_back((*placement)[op]);
  for (const Recomputation& again : plan.again) given.push_back((*placement)[again.op]);
  PlacedGraph placed = as_executed({std::move(given), std::nullopt}, order_, *plan.graph,
                                   costs_.cluster().num_devices());
  const Trace trace = simulate(costs, placed);
  bool fits = true;
  for (const DeviceId device : trace.devices.keys())
    fits = fits && trace.devices[device].peak <= costs_.cluster()[device].capacity;
  if (fits && (plan.placed.device.empty() || trace.schedule.makespan < plan.makespan)) {
    plan.placed = std::move(placed);
    plan.makespan = trace.schedule.makespan;
  }
  return plan.placed.device.empty() ? std::nullopt : std::optional(plan);
}

std::optional<RecomputePlan> Planning::find(const Plan* without) {
  if (without == nullptr && cannot_fit()) return std::nullopt;
  if (order_ == ExecutionOrder::kPlanned) return find_in_planned_order(without);
  const std::optional<RecomputePlan> planned = find_in_planned_order(without);
  if (without != nullptr && !planned.has_value()) return std::nullopt;
  std::optional<RecomputePlan> found;
  if (planned.has_value()) {
    IdVector<OpId, bool> chosen(costs_.graph().num_ops());
    for (const Recomputation& again : planned->again) chosen[again.op] = true;
    found = in_program_order(chosen, &planned->placed.device);
  }
  return found.has_value() ? found : in_program_order(search_.all(), nullptr);
}

std::optional<RecomputePlan> Planning::find_in_planned_order(const Plan* without) {
  const bool searches = placers_of(request_.method).size() > 1;
  const CostModel roomy(costs_.graph(), room_);
  PlanResult easy = make_plan(roomy, quick(request_.budget * kStarts));
  const Plan* unlimited = std::get_if<Plan>(&easy);
  if (unlimited == nullptr) return std::nullopt;  // some operator runs nowhere
  // Where memory costs nothing, second runs gain nothing.
  constexpr double kWorthIt = 1.005;
  if (without != nullptr && static_cast<double>(without->makespan().count()) <=
                                static_cast<double>(unlimited->makespan().count()) * kWorthIt)
    return std::nullopt;

  std::vector<RecomputePlan> found;
  const auto keep = [&](std::optional<RecomputePlan> plan) {
    if (plan.has_value()) found.push_back(*std::move(plan));
  };
  keep(search_.fit(start_of(unlimited->schedule, costs_.graph())));
  if (without != nullptr) keep(search_.fit(start_of(without->schedule, costs_.graph())));
  // Placements that share the work as if there were more memory.
  for (const double times : {1.25, 1.6, 2.2}) {
    const Cluster larger = roomier(costs_, times);
    PlanRequest request = quick(request_.budget * kStarts);
    if (searches && costs_.graph().num_ops() > kMostPlannedOften) request.method = "partition";
    const PlanResult result = make_plan(CostModel(costs_.graph(), larger), request);
    if (const Plan* plan = std::get_if<Plan>(&result))
      keep(search_.fit(start_of(plan->schedule, costs_.graph())));
  }
  if (std::optional<RecomputePlan> whole = all()) {
    keep(search_.fit(search_.start_of(*whole)));
    if (whole->fits()) keep(std::move(whole));
  }
  if (found.empty()) return std::nullopt;
  const auto shortest = [&] {
    return std::ranges::min_element(found, {}, &RecomputePlan::makespan);
  };
  const auto part = static_cast<std::int64_t>(static_cast<double>(work_of(request_)) * kRefining);
  for (int turn = 0; turn < 2; ++turn) {
    const Time before = shortest()->makespan;
    RecomputePlan plan = search_.improved(*shortest());
    if (searches) plan = search_.refined(std::move(plan), part);
    found.push_back(plan);
    keep(search_.fit(search_.start_of(plan)));
    if (shortest()->makespan >= before) break;
  }
  found.push_back(search_.improved(*shortest()));
  return std::move(*shortest());
}

// How much longer devices compute for it, for people.
std::string cost_in_words(const OpGraph& graph, const Plan& plan) {
  Time again, all;
  for (const OpId op : plan.schedule.slots.keys()) {
    const OpSlot& slot = plan.schedule.slots[op];
    all += slot.end - slot.start;
    if (op.index() >= graph.num_ops()) again += slot.end - slot.start;
  }
  return std::to_string(plan.recomputed.size()) +
         " operators run a second time: " + short_text(again) + " more of computing beside " +
         short_text(all - again);
}

Recomputed as_plan(const Planning& planning, RecomputePlan found, const PlanResult& without,
                   ExecutionOrder order) {
  const OpGraph& graph = planning.costs().graph();
  OpGraph rewritten = recomputing(graph, found.again);
  const std::vector<std::string> faults = check_recomputation(graph, rewritten, found.again);
  BAECHI_ASSERT(faults.empty(), ("second runs broke a rule: " + faults.front()).c_str());
  Plan plan;
  {
    const CostModel costs(rewritten, planning.costs().cluster());
    plan = plan_of(costs, found.placed, kMethod, false, order);
  }
  plan.recomputed = std::move(found.again);
  const auto* none = std::get_if<Plan>(&without);
  plan.methods = none != nullptr ? none->methods : std::get<Unplaceable>(without).methods;
  MethodOutcome row;
  row.method = kMethod;
  row.makespan = plan.makespan();
  IdVector<DeviceId, bool> used(plan.devices.size());
  for (const OpSlot& slot : plan.schedule.slots) used[slot.device] = true;
  for (const DeviceId device : plan.devices.keys()) {
    if (used[device]) ++row.devices_used;
    row.peaks.push_back(plan.devices[device].peak);
  }
  plan.methods.push_back(std::move(row));
  if (none != nullptr) plan.passes = none->passes;
  plan.notes.push_back(cost_in_words(graph, plan));
  return {std::move(rewritten), std::move(plan)};
}

}  // namespace

Cluster roomier(const CostModel& costs, std::optional<double> times) {
  ClusterSpec spec = costs.cluster().spec();
  const auto count = static_cast<std::int64_t>(spec.devices.size());
  Bytes room(1);
  for (const OpId op : costs.graph().ops())
    room += costs.graph()[op].permanent + costs.graph()[op].temporary +
            costs.graph().output_bytes(op) * (count + 1);
  for (Device& device : spec.devices) {
    const auto more = static_cast<double>(device.capacity.count()) * times.value_or(1);
    device.capacity = times.has_value() && more < static_cast<double>(room.count())
                          ? Bytes(static_cast<std::int64_t>(more))
                          : std::max(device.capacity, room);
  }
  return Cluster(std::move(spec));
}

std::string nothing_to_repeat(const OpGraph& graph) {
  if (graph.memory_mode() == MemoryMode::kRetain)
    return "nothing is recomputed: the graph's memory mode is retain, which keeps all outputs of "
           "the forward pass";
  const bool backward = std::any_of(graph.ops().begin(), graph.ops().end(),
                                    [&](OpId op) { return graph[op].backward; });
  return backward ? "nothing is recomputed: no operator of the forward pass may run again"
                  : "nothing is recomputed: no operator of the graph is marked as backward";
}

std::string why_no_recompute(const PlanRequest& request) {
  if (request.place.order == ExecutionOrder::kNone)
    return "without an order a device would run operators again as soon as it could, and nothing "
           "would be saved: ask for the planned order or that of the program";
  if (request.place.expert != nullptr) return "an expert's placement has no second runs";
  if (request.robust.has_value())
    return "plans with second runs are compared by their steps alone: leave out robust";
  return "";
}

void check_recompute(const PlanRequest& request) {
  if (request.recompute == Recompute::kNone) return;
  if (const std::string why = why_no_recompute(request); !why.empty())
    throw OptionError("recompute", why);
}

Recomputed plan_recomputing(const OpGraph& graph, const Cluster& cluster,
                            const PlanRequest& request, PlanTimes* times) {
  check_recompute(request);
  Planning planning(graph, cluster, request);
  if (!planning.any()) {
    Recomputed made{std::nullopt, planning.plan_without(times)};
    if (Plan* plan = std::get_if<Plan>(&made.result))
      plan->notes.push_back(nothing_to_repeat(graph));
    else
      planning.suggest(std::get<Unplaceable>(made.result));
    return made;
  }
  if (request.recompute == Recompute::kAll) {
    Recomputed made = planning.plan_all(times);
    if (Plan* plan = std::get_if<Plan>(&made.result)) {
      const auto faults = check_recomputation(graph, *made.graph, plan->recomputed);
      BAECHI_ASSERT(faults.empty(), ("second runs broke a rule: " + faults.front()).c_str());
      plan->notes.push_back(cost_in_words(graph, *plan));
    }
    return made;
  }
  PlanResult without = planning.plan_without(times);
  Plan* const none = std::get_if<Plan>(&without);
  const auto begin = std::chrono::steady_clock::now();
  std::optional<RecomputePlan> found = planning.find(none);
  const std::int64_t nanoseconds =
      std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now() - begin)
          .count();
  const bool better = found.has_value() && !found->again.empty() &&
                      (none == nullptr || found->makespan < none->makespan());
  if (!better && none != nullptr) none->bounds = planning.bounds();
  if (!better && none == nullptr) {
    // That every placement was tried is about plans without second runs.
    auto& answer = std::get<Unplaceable>(without);
    answer.proved = answer.proved && planning.cannot_fit();
    planning.suggest(answer);
  }
  if (!better) return {std::nullopt, std::move(without)};
  Recomputed made = as_plan(planning, *std::move(found), without, request.place.order);
  std::get<Plan>(made.result).bounds = planning.bounds();
  if (times != nullptr) times->methods.push_back({kMethod, nanoseconds});
  return made;
}

std::optional<Time> step_with_recomputation(const OpGraph& graph, const Cluster& cluster,
                                            const PlanRequest& request) {
  PlanRequest asked = request;
  asked.method = "auto";
  asked.budget = request.budget / 2;
  Planning planning(graph, cluster, asked);
  if (!planning.any()) return std::nullopt;
  const std::optional<RecomputePlan> found = planning.find(nullptr);
  if (!found.has_value()) return std::nullopt;
  return found->makespan;
}

}  // namespace baechi
