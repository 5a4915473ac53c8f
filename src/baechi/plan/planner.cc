// SPDX-License-Identifier: Apache-2.0
#include "baechi/plan/planner.h"

#include <algorithm>
#include <span>
#include <utility>

#include "baechi/base/assert.h"
#include "baechi/base/error.h"
#include "baechi/base/in_quotes.h"
#include "baechi/base/short_text.h"
#include "baechi/bounds/lower_bounds.h"
#include "baechi/cost/needed_devices.h"
#include "baechi/place/pipeline/pipeline.h"
#include "baechi/plan/attempt/attempt.h"
#include "baechi/plan/attempt/canonical_costs.h"
#include "baechi/plan/attempt/search_log.h"
#include "baechi/plan/attempt/simulated_plan.h"
#include "baechi/plan/fit/memory_needs.h"
#include "baechi/plan/fit/suggestions.h"
#include "baechi/plan/portfolio.h"
#include "baechi/plan/request/budget.h"
#include "baechi/plan/request/methods.h"
#include "baechi/plan/request/option_values.h"
#include "baechi/plan/request/paper.h"
#include "baechi/plan/request/planner_options.h"
#include "baechi/plan/robust.h"
#include "baechi/plan/search/tidy.h"
#include "baechi/plan/seen_devices.h"

namespace baechi {
namespace {

// An attempt on the needed devices as one on all of them.
void widen(const NeededDevices& needed, std::size_t num_devices, Attempt& attempt) {
  if (!attempt.placed.has_value()) return;
  attempt.placed = needed.on_all(*std::move(attempt.placed), num_devices);
  IdVector<DeviceId, Bytes> peaks(num_devices);
  for (const DeviceId device : attempt.peaks.keys())
    peaks[needed.original(device)] = attempt.peaks[device];
  attempt.peaks = std::move(peaks);
}

PortfolioResult run_on_few(const NeededDevices& few, std::size_t num_devices,
                           const PlanRequest& request, std::int64_t spent = 0) {
  PortfolioResult result = run_portfolio(few.costs(), Units(few.costs()), request, {}, spent);
  for (Attempt& attempt : result.attempts) widen(few, num_devices, attempt);
  return result;
}

constexpr const char* kFirstMethod = "m-etf";

// The first plan, where there was no time for another.
PortfolioResult just(const PlacedGraph& placed, const Problem& problem) {
  Attempt attempt;
  attempt.method = kFirstMethod;
  attempt.placer = &find_placer(kFirstMethod);
  offer_placement(problem, placed, attempt);
  PortfolioResult result;
  result.attempts.push_back(std::move(attempt));
  result.notes.emplace_back(kSearchStopped);
  return result;
}

// Of hundreds of equal devices, methods see as many as there are operators, and those of a
// portfolio about as many as can have something to do. An expert's placement names devices: then
// they see all.
PortfolioResult run_on_needed_devices(const CostModel& costs, const Units& units,
                                      const PlanRequest& request) {
  if (request.paper) return run_portfolio(costs, units, request);  // m-TOPO's cap counts devices
  const std::size_t num_devices = costs.cluster().num_devices();
  const auto needed = request.place.expert == nullptr ? NeededDevices::of(costs) : nullptr;
  if (needed != nullptr) return run_on_few(*needed, num_devices, request);
  if (runs_alone(request.method) || request.budget.none() ||
      (!request.watch && num_devices <= FirstPlans::kFewDevices))
    return run_portfolio(costs, units, request);
  const FirstPlans first = first_plans(costs, request);
  if (first.step.has_value()) tell(request, *first.step, kFirstMethod);
  const auto few = request.place.expert == nullptr ? devices_to_see(costs, first) : nullptr;
  // Whoever watches gets the same plan.
  const std::int64_t spent = num_devices > FirstPlans::kFewDevices ? first.work : 0;
  try {
    if (few != nullptr)
      if (PortfolioResult found = run_on_few(*few, num_devices, request, spent);
          best_of(found.attempts) != nullptr)
        return found;
    return run_portfolio(costs, units, request, first.known, spent);
  } catch (const Cancelled&) {  // anytime: what was told of stays
    if (!first.placed.has_value()) throw;
    return just(*first.placed, {.costs = costs, .units = units, .order = request.place.order});
  }
}

void check(const PlanRequest& request) {
  check_ranges({.search = request});
  if (places_in_stages(request.method))
    throw OptionError("method", for_several_only(request.method));
}

Unplaceable with_suggestions(const CostModel& costs, const PlanRequest& request, double share,
                             Unplaceable answer) {
  if (!request.suggest) return answer;
  std::optional<CanonicalCosts> canonical;
  if (costs.graph().num_ops() <= kMostCanonicalOps) canonical.emplace(costs);
  const Suggestions found = suggest(canonical.has_value() ? canonical->costs() : costs,
                                    {.budget = request.budget.part(share),
                                     .order = request.place.order,
                                     .cancel = request.place.cancel});
  answer.smallest_capacity = found.smallest_capacity;
  answer.more_devices = found.more_devices;
  answer.advice_cut_short = found.cut_short;
  return answer;
}

// The search's plan in fewer pieces, where it is the best one; nothing where it stays as it is, as a
// proved optimum does. `bounds` are there afterwards where they were needed.
std::optional<Tidied> tidied(const Problem& problem, const PlanRequest& request,
                             const Attempt& searched, const std::optional<NamedBound>& reached,
                             std::span<const Attempt> attempts, std::vector<NamedBound>& bounds) {
  const auto is_optimum = [&] {
    return (reached.has_value() && reached->value >= searched.makespan) ||
           (!bounds.empty() && bounds.front().value >= searched.makespan);
  };
  if (is_optimum()) return std::nullopt;
  Time may_lose(searched.makespan.count() / 10'000 * (request.tidy ? 30 : 5));
  if (!request.tidy)  // a step may not be longer than that of a method alone
    for (const Attempt& attempt : attempts)
      if (attempt.placer != nullptr && attempt.placed.has_value())
        may_lose =
            std::min(may_lose, std::max(attempt.makespan, searched.makespan) - searched.makespan);
  std::optional<Tidied> found = tidy(problem, searched,
                                     {.may_lose = may_lose,
                                      .work = request.budget.part(Share::kTidy).refines(),
                                      .cancel = request.place.cancel});
  if (found.has_value() && bounds.empty()) bounds = lower_bounds(problem.costs);
  if (is_optimum()) return std::nullopt;
  return found;
}

std::string told(const Tidied& tidied, Time before) {
  const std::int64_t lost = (tidied.attempt.makespan - before).count();
  return "tidy: " + counted(tidied.islands, "island") + " of " + counted(tidied.ops, "operator") +
         " went to a neighbour's device; the step is " +
         (lost > 0   ? short_text(Time(lost)) + " longer"
          : lost < 0 ? short_text(Time(-lost)) + " shorter"
                     : "as long");
}

}  // namespace

PlanResult make_plan(const CostModel& costs, const PlanRequest& asked, PlanTimes* times) {
  const PlanRequest request = asked.paper ? as_the_paper({.search = asked}).search : asked;
  check(request);
  const Units units(costs);
  if (const std::optional<CannotFit> proof = prove_cannot_fit(costs, units))
    return with_suggestions(costs, request, Share::kAdviceAtOnce,
                            {.op = proof->op,
                             .short_by = proof->short_by,
                             .proved = true,
                             .reason = proof->reason,
                             .smallest_capacity = {},
                             .more_devices = {},
                             .methods = {}});

  SearchLog log(request);
  std::vector<NamedBound> bounds;
  if (request.watch && request.bounds) bounds = lower_bounds(costs);
  if (!bounds.empty()) log.add({.bound = bounds.front().value});
  PortfolioResult portfolio = run_on_needed_devices(costs, units, log.watched());
  const std::vector<Attempt>& attempts = portfolio.attempts;
  BAECHI_ASSERT(!attempts.empty(), "every method makes an attempt");
  const Attempt* best = best_of(attempts);
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
    return with_suggestions(costs, request, Share::kAdvice, std::move(answer));
  }
  const auto devices_of = [&](const Attempt& attempt) {
    return methods[static_cast<std::size_t>(&attempt - attempts.data())].devices_used;
  };
  if (!request.paper)  // of equal steps the one on fewer devices
    for (const Attempt& attempt : attempts)
      if (attempt.placed.has_value() && attempt.makespan == best->makespan &&
          devices_of(attempt) < devices_of(*best))
        best = &attempt;
  if (request.place.order == ExecutionOrder::kNone && !request.paper)
    best = &attempts[most_robust_of_fastest(costs, attempts, request)];
  // A method's own plan stays what it is: the search begins with it, and ends with it if with no other.
  const auto searched = std::ranges::find_if(attempts, [&](const Attempt& attempt) {
    return attempt.placer == nullptr && attempt.placed.has_value() &&
           attempt.makespan == best->makespan && devices_of(attempt) <= devices_of(*best);
  });
  std::optional<Tidied> tidied;
  if (searched != attempts.end())
    tidied = baechi::tidied({.costs = costs, .units = units, .order = request.place.order}, request,
                            *searched, portfolio.bound, attempts, bounds);
  if (tidied.has_value()) {
    if (request.tidy || tidied->attempt.makespan > searched->makespan)
      portfolio.notes.push_back(told(*tidied, searched->makespan));
    methods[static_cast<std::size_t>(searched - attempts.begin())] = outcome_of(tidied->attempt);
    best = &tidied->attempt;
  }
  Plan plan = plan_of(costs, *best->placed, best->method, request.bounds && bounds.empty(),
                      request.place.order);
  if (request.bounds && !bounds.empty()) plan.bounds = std::move(bounds);
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
  return plan;
}

}  // namespace baechi
