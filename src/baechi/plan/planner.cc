// SPDX-License-Identifier: Apache-2.0
#include "baechi/plan/planner.h"

#include <algorithm>
#include <utility>

#include "baechi/base/assert.h"
#include "baechi/base/error.h"
#include "baechi/base/in_quotes.h"
#include "baechi/base/short_text.h"
#include "baechi/bounds/lower_bounds.h"
#include "baechi/cost/needed_devices.h"
#include "baechi/plan/attempt/attempt.h"
#include "baechi/plan/attempt/canonical_costs.h"
#include "baechi/plan/attempt/improvements.h"
#include "baechi/plan/fit/memory_needs.h"
#include "baechi/plan/portfolio.h"
#include "baechi/plan/request/planner_options.h"
#include "baechi/plan/robust.h"
#include "baechi/plan/search/budget.h"
#include "baechi/plan/seen_devices.h"
#include "baechi/plan/steps/step_methods.h"
#include "baechi/verify/check_schedule.h"

namespace baechi {
namespace {

// This cluster with other capacities or more devices; nothing when its link rules do not reach
// them.
std::optional<Cluster> changed(const Cluster& cluster, std::optional<Bytes> capacity,
                               std::size_t count) {
  ClusterSpec spec = cluster.spec();
  const Device largest =
      *std::max_element(spec.devices.begin(), spec.devices.end(),
                        [](const Device& a, const Device& b) { return a.capacity < b.capacity; });
  for (std::size_t i = spec.devices.size(); i < count; ++i) {
    Device device = largest;
    device.name = largest.name + " copy " + std::to_string(i);
    spec.devices.push_back(std::move(device));
  }
  if (capacity.has_value())
    for (Device& device : spec.devices) device.capacity = *capacity;
  try {
    return Cluster(std::move(spec));
  } catch (const InputError&) {
    return std::nullopt;
  }
}

bool fits_with(const CostModel& costs, std::optional<Bytes> capacity, std::size_t count,
               const SuggestOptions& options) {
  const std::optional<Cluster> cluster = changed(costs.cluster(), capacity, count);
  if (!cluster.has_value()) return false;
  const CostModel whole(costs.graph(), *cluster);
  const auto needed = NeededDevices::of(whole);
  const CostModel& other = needed != nullptr ? needed->costs() : whole;
  const Units units(other);
  constexpr std::int64_t kMostWork = 2'000'000;
  const std::int64_t work =
      std::min(kMostWork, work_for_fit(costs.graph(), options.budget * Share::kProbe) / 4);
  return find_any_fit(other, units, options.order, work, options.cancel).has_value();
}

// An attempt on the needed devices as one on all of them.
void widen(const NeededDevices& needed, std::size_t num_devices, Attempt& attempt) {
  if (!attempt.placed.has_value()) return;
  for (DeviceId& device : attempt.placed->device) device = needed.original(device);
  std::optional<DeviceOrder>& order = attempt.placed->order;
  IdVector<DeviceId, Bytes> peaks(num_devices);
  DeviceOrder rows(num_devices);
  for (const DeviceId device : attempt.peaks.keys()) {
    peaks[needed.original(device)] = attempt.peaks[device];
    if (order.has_value()) rows[needed.original(device)] = std::move((*order)[device]);
  }
  if (order.has_value()) order = std::move(rows);
  attempt.peaks = std::move(peaks);
}

PortfolioResult run_on_few(const NeededDevices& few, std::size_t num_devices,
                           const PlanRequest& request) {
  PortfolioResult result = run_portfolio(few.costs(), Units(few.costs()), request);
  for (Attempt& attempt : result.attempts) widen(few, num_devices, attempt);
  return result;
}

// Of hundreds of equal devices, methods see as many as there are operators, and those of a
// portfolio about as many as can have something to do. An expert's placement names devices: then
// they see all.
PortfolioResult run_on_needed_devices(const CostModel& costs, const Units& units,
                                      const PlanRequest& request) {
  const std::size_t num_devices = costs.cluster().num_devices();
  const auto needed = request.place.expert == nullptr ? NeededDevices::of(costs) : nullptr;
  if (needed != nullptr) return run_on_few(*needed, num_devices, request);
  if (runs_alone(request.method) || (!request.watch && num_devices <= FirstPlans::kFewDevices))
    return run_portfolio(costs, units, request);
  const FirstPlans first = first_plans(costs, request);
  if (first.step.has_value()) tell(request, *first.step, "m-etf");
  const auto few = request.place.expert == nullptr ? devices_to_see(costs, first) : nullptr;
  return few == nullptr ? run_portfolio(costs, units, request)
                        : run_on_few(*few, num_devices, request);
}

Unplaceable with_suggestions(const CostModel& costs, const PlanRequest& request,
                             Unplaceable answer) {
  if (!request.suggest) return answer;
  const SuggestOptions options{
      .budget = request.budget, .order = request.place.order, .cancel = request.place.cancel};
  std::optional<CanonicalCosts> canonical;
  if (costs.graph().num_ops() <= kMostCanonicalOps) canonical.emplace(costs);
  const CostModel& asked = canonical.has_value() ? canonical->costs() : costs;
  answer.smallest_capacity = smallest_equal_capacity(asked, options);
  answer.more_devices = smallest_device_count(asked, options);
  return answer;
}

}  // namespace

std::string Unplaceable::in_words() const {
  std::string text = reason;
  if (smallest_capacity.has_value())
    text += "; it fits when every device has " + baechi::in_words(*smallest_capacity);
  if (more_devices.has_value())
    text += "; it fits on " + std::to_string(*more_devices) + " devices like the largest";
  if (step_with_recomputation.has_value())
    text += "; with recompute auto it fits: a step takes " + short_text(*step_with_recomputation);
  return text;
}

std::optional<Bytes> smallest_equal_capacity(const CostModel& costs,
                                             const SuggestOptions& options) {
  const std::size_t count = costs.cluster().num_devices();
  const Units units(costs);
  Bytes permanent, low(1);
  for (const UnitId unit : units.keys()) {
    permanent += units[unit].permanent;
    low = std::max(low, units[unit].need);
  }
  low = std::max(low, Bytes(permanent.count() / static_cast<std::int64_t>(count)));
  // Everything at once on one device is certainly enough, where one may run everything.
  Bytes high = permanent + Bytes(1);
  for (const OpId op : costs.graph().ops())
    high += costs.graph()[op].temporary +
            costs.graph().output_bytes(op) * static_cast<std::int64_t>(count);
  if (!fits_with(costs, high, count, options)) return std::nullopt;
  // Not monotone for a heuristic, but close: halve down to a thousandth of the answer.
  while (high - low > Bytes(high.count() / 1000)) {
    throw_if_cancelled(options.cancel);
    const Bytes middle = low + Bytes((high - low).count() / 2);
    if (fits_with(costs, middle, count, options))
      high = middle;
    else
      low = middle + Bytes(1);
  }
  return high;
}

std::optional<std::size_t> smallest_device_count(const CostModel& costs,
                                                 const SuggestOptions& options) {
  constexpr std::size_t kMostDevices = 64;
  std::size_t low = costs.cluster().num_devices(), high = low + 1;
  while (!fits_with(costs, std::nullopt, high, options)) {
    throw_if_cancelled(options.cancel);
    if (high >= kMostDevices) return std::nullopt;
    low = high;
    high = std::min(kMostDevices, high * 2);
  }
  while (high - low > 1) {
    const std::size_t middle = low + (high - low) / 2;
    (fits_with(costs, std::nullopt, middle, options) ? high : low) = middle;
  }
  return high;
}

IdVector<DeviceId, PlanDevice> plan_devices(const Trace& trace) {
  IdVector<DeviceId, PlanDevice> devices;
  for (const DeviceTrace& device : trace.devices)
    devices.push_back(
        {device.peak, device.peak_at, device.peak_op, device.busy, device.sent, device.received});
  return devices;
}

Plan plan_of(const CostModel& costs, const PlacedGraph& placed, const std::string& method,
             bool bounds, ExecutionOrder order) {
  const OpGraph& graph = costs.graph();
  const Cluster& cluster = costs.cluster();
  Trace trace = simulate(costs, as_executed(placed, order, graph, cluster.num_devices()));
  const std::vector<std::string> violations =
      check_schedule(graph, cluster, trace.schedule, {.order = order});
  BAECHI_ASSERT(violations.empty(), ("a plan broke a rule: " + violations.front()).c_str());

  Plan plan;
  plan.graph_name = graph.name();
  plan.cluster = cluster.spec();
  plan.memory_mode = graph.memory_mode();
  plan.order = order;
  plan.method = method;
  plan.schedule = std::move(trace.schedule);
  plan.devices = plan_devices(trace);
  if (bounds) plan.bounds = lower_bounds(costs);
  return plan;
}

Plan retold(const Plan& plan, const CostModel& costs, Trace trace, ExecutionOrder order) {
  Plan result = plan;
  result.cluster = costs.cluster().spec();
  result.order = order;
  result.devices = plan_devices(trace);
  result.schedule = std::move(trace.schedule);
  result.bounds.clear();
  result.methods.clear();
  result.passes.clear();
  result.improvements.clear();
  return result;
}

Plan replayed(const Plan& plan, const CostModel& costs, ExecutionOrder order,
              const CancelFlag* cancel) {
  const OpGraph& graph = costs.graph();
  BAECHI_ASSERT(costs.cluster().num_devices() == plan.cluster.devices.size(),
                "a plan is replayed on as many devices");
  const std::size_t num_devices = costs.cluster().num_devices();
  const PlacedGraph placed =
      as_executed({placement_of(plan.schedule), order_of(plan.schedule, graph, num_devices)}, order,
                  graph, num_devices);
  return retold(plan, costs, simulate(costs, placed, {.cancel = cancel}), order);
}

Plan plan_with_capacities(Plan plan, const CostModel& costs) {
  const Cluster& cluster = costs.cluster();
  ClusterSpec same = plan.cluster;
  std::string less;
  for (std::size_t i = 0; i < std::min(same.devices.size(), cluster.num_devices()); ++i) {
    const Device& device = cluster[DeviceId(i)];
    Bytes& planned = same.devices[i].capacity;
    if (planned < device.capacity)
      less += (less.empty() ? "" : ", ") + in_quotes(device.name) + " " + short_text(planned) +
              " of " + short_text(device.capacity);
    planned = device.capacity;
  }
  if (same != cluster.spec())
    throw InputError("the plan is for a cluster that differs in more than capacities");
  plan.cluster = std::move(same);
  const bool had_bounds = !plan.bounds.empty();
  const std::vector<std::string> violations =
      check_schedule(costs.graph(), cluster, plan.schedule, {.order = plan.order});
  if (!violations.empty()) throw InputError("the plan does not fit: " + violations.front());
  plan.bounds.clear();
  if (had_bounds && plan.recomputed.empty()) plan.bounds = lower_bounds(costs);
  if (!less.empty()) plan.notes.push_back("planned with less memory than there is: " + less);
  return plan;
}

PlanResult make_plan(const CostModel& costs, const PlanRequest& request, PlanTimes* times) {
  check_ranges(request);
  if (places_in_stages(request.method))
    throw OptionError("method", in_quotes(request.method) +
                                    " places steps of several micro-batches, and this is one");
  const Units units(costs);
  if (const std::optional<CannotFit> proof = prove_cannot_fit(costs, units))
    return with_suggestions(costs, request,
                            {.op = proof->op,
                             .short_by = proof->short_by,
                             .proved = true,
                             .reason = proof->reason,
                             .smallest_capacity = {},
                             .more_devices = {},
                             .methods = {}});

  ImprovementLog log(request);
  std::vector<NamedBound> bounds;
  if (request.watch && request.bounds) bounds = lower_bounds(costs);
  if (!bounds.empty()) log.add({.bound = bounds.front().value});
  PortfolioResult portfolio = run_on_needed_devices(costs, units, log.watched());
  const std::vector<Attempt>& attempts = portfolio.attempts;
  BAECHI_ASSERT(!attempts.empty(), "every method makes an attempt");
  const Attempt* best = nullptr;
  for (const Attempt& attempt : attempts)
    if (attempt.placed.has_value() && (best == nullptr || attempt.makespan < best->makespan))
      best = &attempt;
  std::vector<MethodOutcome> methods;
  for (const Attempt& attempt : attempts) {
    methods.push_back(outcome_of(attempt));
    if (times != nullptr) times->methods.push_back({attempt.method, attempt.nanoseconds});
  }
  if (times != nullptr)
    for (const PassStatistics& pass : portfolio.passes) times->passes.push_back(pass.cpu_time);

  if (best == nullptr) {
    const auto proved = std::find_if(attempts.begin(), attempts.end(),
                                     [](const Attempt& attempt) { return attempt.proved; });
    const Attempt& telling = proved != attempts.end() ? *proved : attempts.front();
    Unplaceable answer;
    answer.proved = telling.proved;
    answer.reason = telling.reason;
    if (telling.misfit.has_value()) {
      answer.op = telling.misfit->op;
      answer.short_by = telling.misfit->short_by;
    }
    answer.methods = std::move(methods);
    return with_suggestions(costs, request, std::move(answer));
  }
  if (request.place.order == ExecutionOrder::kNone)
    best = &attempts[most_robust_of_fastest(costs, attempts, request)];
  if (request.robust.has_value()) {
    try {
      RobustChoice choice = choose_robust(costs, attempts,
                                          {.fraction = *request.robust,
                                           .seed = request.place.seed,
                                           .threads = request.threads,
                                           .cancel = request.place.cancel});
      best = &attempts[choice.attempt];
      portfolio.notes.push_back(std::move(choice.note));
    } catch (const Cancelled&) {  // anytime: the plan that there is stays
      portfolio.notes.emplace_back(
          "robust: you stopped before the plans were compared; this one has the shortest step");
    }
  }
  Plan plan = plan_of(costs, *best->placed, best->method, request.bounds && bounds.empty(),
                      request.place.order);
  if (!bounds.empty()) plan.bounds = std::move(bounds);
  if (request.bounds && portfolio.bound.has_value()) {
    plan.bounds.push_back(*portfolio.bound);
    std::ranges::sort(plan.bounds, [](const NamedBound& a, const NamedBound& b) {
      return a.value != b.value ? a.value > b.value : a.name < b.name;
    });
  }
  plan.fallbacks = best->fallbacks;
  plan.methods = std::move(methods);
  plan.passes.assign(portfolio.passes.begin(), portfolio.passes.end());
  plan.notes = std::move(portfolio.notes);
  plan.improvements = log.take(plan);
  return plan;
}

}  // namespace baechi
