// SPDX-License-Identifier: Apache-2.0
#include "baechi/plan/recompute/recompute_planning.h"

#include <algorithm>
#include <cstddef>
#include <memory>
#include <utility>
#include <variant>

#include "baechi/base/error.h"
#include "baechi/bounds/lower_bounds.h"
#include "baechi/plan/fit/memory_needs.h"
#include "baechi/plan/fit/suggestions.h"
#include "baechi/plan/planner.h"
#include "baechi/plan/recompute/ample_memory.h"
#include "baechi/plan/request/budget.h"
#include "baechi/plan/request/methods.h"
#include "baechi/schedule/execution_order.h"
#include "baechi/simulate/execution_simulator.h"

namespace baechi {
namespace {

// Parts of the budget, beside all of it for plans without second runs.
constexpr double kAmple = 0.06;  // a plan with ample memory: does memory cost time?
constexpr double kToFit = 0.1;   // where nothing fits without second runs, to find any start
constexpr double kStartsOfUnfit = 0.06;  // there, and
constexpr double kStarts = 0.03;         // else, each of four more plans to start from
constexpr double kChoices = 0.3;         // which operators run again
constexpr double kWalk = 0.35;           // of few operators: each of kWalks over all of it at once
constexpr double kRefining = 0.05;       // where and when everything runs; twice if nothing fits so

constexpr std::uint64_t kWalks = 2;
constexpr std::size_t kFewOps = 40;  // that are planned with all of the budget in any case
constexpr std::size_t kMostPlannedOften = 1'000;  // operators: more start from two methods' plans

bool fits(const Plan& plan, const Cluster& cluster) {
  return std::ranges::all_of(cluster.devices(), [&](DeviceId device) {
    return plan.devices[device].peak <= cluster[device].capacity;
  });
}

auto shortest_of(std::vector<RecomputePlan>& plans) {
  return std::ranges::min_element(plans, {}, &RecomputePlan::makespan);
}

}  // namespace

RecomputePlanning::RecomputePlanning(const OpGraph& graph, const Cluster& cluster,
                                     const PlanRequest& request)
    : costs_(graph, cluster),
      request_(request),
      runs_(graph),
      room_(roomier(costs_, std::nullopt)),
      search_(costs_, runs_, request_, request_.budget.part(kChoices).replays()),
      order_(request.place.order) {
  request_.place.order = ExecutionOrder::kPlanned;  // which to run again is searched for in it
}

bool RecomputePlanning::is_few() const { return costs_.graph().num_ops() <= kFewOps; }

bool RecomputePlanning::is_large() const { return costs_.graph().num_ops() > kMostPlannedOften; }

bool RecomputePlanning::searches() const { return placers_of(request_.method).size() > 1; }

PlanRequest RecomputePlanning::quick(double share) const {
  return request_.within(request_.budget.part(share));
}

PlanResult RecomputePlanning::quick_start(const CostModel& costs, bool fits) const {
  PlanRequest request = quick(fits ? kStarts : kStartsOfUnfit);
  request.budget_to_fit = request_.budget.part(fits ? kStarts : kToFit);
  if (!searches() || !is_large()) return make_plan(costs, request);
  request.method = "partition";
  PlanResult divided = make_plan(costs, request);
  request.method = "m-etf";  // as it is
  request.budget_to_fit = 0;
  PlanResult listed = make_plan(costs, request);
  const auto* first = std::get_if<Plan>(&divided);
  const auto* second = std::get_if<Plan>(&listed);
  const bool is_shorter =
      second != nullptr && (first == nullptr || second->makespan() < first->makespan());
  return is_shorter ? std::move(listed) : std::move(divided);
}

std::vector<Recomputation> RecomputePlanning::whole_regions() const {
  const auto order = costs_.graph().topological_order();
  return runs_.in({order.begin(), order.end()}, search_.all()).again;
}

void RecomputePlanning::suggest(Unplaceable& answer) const {
  if (!request_.suggest) return;
  const SuggestOptions options{.budget = request_.budget.part(Share::kAdvice / (any() ? 2 : 1)),
                               .cancel = request_.place.cancel};
  const auto take = [&](const CostModel& costs) {
    const auto take_smaller = [](auto& known, const auto& other) {
      if (other.has_value() && (!known.has_value() || *other < *known)) known = other;
    };
    const Suggestions found = baechi::suggest(costs, options);
    take_smaller(answer.smallest_capacity, found.smallest_capacity);
    take_smaller(answer.more_devices, found.more_devices);
  };
  take(costs_);
  if (!any()) return;
  const OpGraph regions = recomputing(costs_.graph(), whole_regions());
  take(CostModel(regions, costs_.cluster()));
}

std::vector<NamedBound> RecomputePlanning::bounds() const {
  if (!request_.bounds) return {};
  return lower_bounds(CostModel(costs_.graph(), room_));  // also of a search that was stopped
}

const Plan* RecomputePlanning::with_ample_memory() {
  if (!easy_.has_value()) easy_ = make_plan(CostModel(costs_.graph(), room_), quick(kAmple));
  return std::get_if<Plan>(&*easy_);
}

PlanResult RecomputePlanning::plan_without(PlanTimes* times) const {
  PlanRequest request = request_;
  request.place.order = order_;
  request.suggest = false;
  request.bounds = request.bounds && !any();  // else bounds() has them
  return make_plan(costs_, request, times);
}

std::optional<RecomputePlan> RecomputePlanning::all(bool fits) {
  RecomputePlan plan;
  plan.again = whole_regions();
  plan.graph = std::make_shared<const OpGraph>(recomputing(costs_.graph(), plan.again));
  const CostModel costs(*plan.graph, costs_.cluster());
  PlanResult result = is_few() ? make_plan(costs, quick(1)) : quick_start(costs, fits);
  auto* made = std::get_if<Plan>(&result);
  if (made == nullptr) return std::nullopt;
  // Operators that take no time may run in an order that cannot be read off the schedule: the order
  // that is read may be another one, which need not fit.
  plan.placed = placed_graph_of(*made, *plan.graph);
  search_.measure(plan, costs);
  return plan;
}

Recomputed RecomputePlanning::plan_all(PlanTimes* times) {
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
std::optional<RecomputePlan> RecomputePlanning::in_program_order(const IdVector<OpId, bool>& chosen,
                                                                 const Placement* placement) {
  const auto file = costs_.graph().topological_order();
  RecomputePlan plan;
  plan.again = runs_.in({file.begin(), file.end()}, chosen).again;
  if (plan.again.empty()) return std::nullopt;
  plan.graph = std::make_shared<const OpGraph>(recomputing(costs_.graph(), plan.again));
  const CostModel costs(*plan.graph, costs_.cluster());
  PlanRequest request = quick(kChoices);
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

std::optional<RecomputePlan> RecomputePlanning::find(const Plan* without) {
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

bool RecomputePlanning::memory_costs(const Plan& without) {
  const Plan* ample = with_ample_memory();
  if (ample == nullptr || fits(*ample, costs_.cluster())) return false;
  const auto is_longer = [&](const Plan& plan) {
    constexpr double kWorthIt = 1.01;
    return static_cast<double>(plan.makespan().count()) >
           static_cast<double>(ample->makespan().count()) * kWorthIt;
  };
  if (is_longer(without)) return true;
  // All of the budget may end with a shorter plan than a small part of it does with ample memory,
  // and memory cost time nevertheless: so the same search, as short, with the memory that there is.
  const PlanResult tight = make_plan(costs_, quick(kAmple));
  const Plan* plan = std::get_if<Plan>(&tight);
  return plan == nullptr || is_longer(*plan);
}

// Adds plans with second runs that fit, from several placements.
void RecomputePlanning::add_starts(const Plan* without, std::vector<RecomputePlan>& found) {
  const auto keep = [&](std::optional<RecomputePlan> plan) {
    if (plan.has_value()) found.push_back(*std::move(plan));
  };
  const OpGraph& graph = costs_.graph();
  if (const Plan* ample = with_ample_memory()) keep(search_.fit(start_of(ample->schedule, graph)));
  if (without != nullptr) keep(search_.fit(start_of(without->schedule, graph)));
  // Placements that share the work as if there were more memory.
  const bool fits = without != nullptr;
  for (const double times : {fits ? 1.25 : 3.0, 1.6, 2.2}) {
    const Cluster larger = roomier(costs_, times);
    const PlanResult result = quick_start(CostModel(graph, larger), fits);
    if (const Plan* plan = std::get_if<Plan>(&result))
      keep(search_.fit(start_of(plan->schedule, graph)));
  }
  if (std::optional<RecomputePlan> whole = all(fits)) {
    keep(search_.fit(search_.start_of(*whole)));
    if (whole->fits()) keep(std::move(whole));
  }
}

std::optional<RecomputePlan> RecomputePlanning::find_in_planned_order(const Plan* without) {
  std::vector<RecomputePlan> found;
  try {
    add_starts(without, found);
    if (!found.empty()) improve(without, found);
  } catch (const Cancelled&) {  // anytime: what was found before stays
    if (found.empty()) throw;
  }
  if (found.empty()) return std::nullopt;
  return std::move(*shortest_of(found));
}

void RecomputePlanning::improve(const Plan* without, std::vector<RecomputePlan>& found) {
  // Where there is a plan without, second runs seldom make much of a difference.
  const int turns = without != nullptr ? 1 : 2;
  for (int turn = 0; turn < turns; ++turn) {
    const Time before = shortest_of(found)->makespan;
    RecomputePlan plan = search_.improved(*shortest_of(found));
    if (searches())
      plan = search_.refined(std::move(plan), request_.budget.part(kRefining).refines());
    found.push_back(plan);
    if (auto fitted = search_.fit(search_.start_of(plan))) found.push_back(*std::move(fitted));
    if (shortest_of(found)->makespan >= before) break;
  }
  if (is_few() && searches())
    for (std::uint64_t i = 0; i < kWalks; ++i)
      if (auto walked = search_.walked(*shortest_of(found), request_.budget.part(kWalk).replays(),
                                       request_.place.seed + i))
        found.push_back(*std::move(walked));
  found.push_back(search_.improved(*shortest_of(found)));
}

}  // namespace baechi
