// SPDX-License-Identifier: Apache-2.0
#include "baechi/plan/portfolio.h"

#include <algorithm>
#include <utility>

#include "baechi/base/error.h"
#include "baechi/place/exact/exact.h"
#include "baechi/plan/attempt/canonical_costs.h"
#include "baechi/plan/fit/any_fit.h"
#include "baechi/plan/portfolio_run.h"
#include "baechi/plan/request/budget.h"
#include "baechi/plan/request/methods.h"
#include "baechi/plan/request/paper.h"
#include "baechi/plan/request/planner_options.h"

namespace baechi {
namespace {

PortfolioResult run_all(const CostModel& costs, const Units& units, const Given& given,
                        const PlanRequest& request, const PortfolioEntry& recipe,
                        bool repairs_only = false) {
  PortfolioRun portfolio(costs, units, given, request);
  try {
    const std::vector<const PlacerEntry*> placers = placers_of(request.method);
    if (repairs_only) portfolio.search_for_none();
    for (const PlacerEntry* placer : placers) portfolio.place(*placer);
    portfolio.repair();
    if (given.canonical == nullptr) portfolio.place_others();
    if (request.budget.none() && portfolio.has_plan()) {
      portfolio.leave_out("a search");
      return portfolio.take();
    }
    if (recipe.proof == 0 || !portfolio.prove(recipe.proof, recipe.is_for_proof)) {
      portfolio.place_on_faster(placers, best_placement);
      portfolio.search(best_placement);
      const bool none = !repairs_only && !portfolio.has_plan() && is_searchable(costs);
      if (none || recipe.is_for_proof) portfolio.prove(Share::kRest, true);
    }
  } catch (const Cancelled&) {  // anytime: the plan that there is stays
    if (!portfolio.has_plan()) throw;
    portfolio.note(kSearchStopped);
  }
  return portfolio.take();
}

// What the methods place by their own choices in the order of the file: `auto` is no worse than
// any.
std::vector<Attempt> attempts_as_given(const CostModel& costs, const Units& units,
                                       const PlanRequest& request) {
  PortfolioRun portfolio(costs, units, {costs, units}, request);
  portfolio.keep_no_fallbacks();
  for (const PlacerEntry& placer : all_placers())
    if (placer.in_auto && !placer.baseline) portfolio.place(placer);
  return portfolio.take().attempts;
}

void take_better(std::vector<Attempt> others, std::vector<Attempt>& attempts) {
  for (Attempt& other : others)
    for (Attempt& attempt : attempts)
      if (attempt.placer == other.placer && other.placed.has_value() &&
          (!attempt.placed.has_value() || other.makespan < attempt.makespan)) {
        other.nanoseconds += attempt.nanoseconds;
        attempt = std::move(other);
        break;
      }
}

}  // namespace

PortfolioResult run_portfolio(const CostModel& costs, const Units& units,
                              const PlanRequest& request, const KnownPlans& known,
                              std::int64_t spent) {
  if (request.paper) {
    PortfolioRun portfolio(costs, units, {costs, units}, request);
    for (const PlacerEntry* placer : placers_of_the_paper(request.method)) portfolio.place(*placer);
    return portfolio.take();
  }
  const std::optional<PortfolioEntry> recipe = recipe_of(request.method);
  if (!recipe.has_value()) {
    const PlacerEntry& placer = find_placer(request.method);
    if (placer.needs_expert && request.place.expert == nullptr)
      throw OptionError("expert", "method " + request.method + " needs a placement to follow");
    PortfolioRun portfolio(costs, units, {costs, units}, request);
    portfolio.place_alone(placer);
    return portfolio.take();
  }
  // Executors with an order of their own take it from the file, or take ids to break ties.
  if (costs.graph().num_ops() > kMostCanonicalOps ||
      request.place.order != ExecutionOrder::kPlanned)
    return run_all(costs, units, {.costs = costs, .units = units, .known = &known, .spent = spent},
                   request, *recipe);

  const CanonicalCosts canonical(costs);
  const Units canonical_units(canonical.costs());
  // Without queues nothing depends on which of two simultaneous transfers is served first.
  std::optional<CanonicalCosts> busy;
  if (costs.cluster().communication() != CommunicationMode::kParallel)
    busy.emplace(costs, CanonicalCosts::Numbering::kGiven);
  PlanRequest renumbered = request;
  std::optional<Placement> expert;
  if (request.place.expert != nullptr) {
    expert = canonical.from_given(*request.place.expert);
    renumbered.place.expert = &*expert;
  }
  PortfolioResult result = run_all(canonical.costs(), canonical_units,
                                   {.costs = costs,
                                    .units = units,
                                    .canonical = &canonical,
                                    .busy = busy.has_value() ? &*busy : nullptr,
                                    .spent = spent},
                                   renumbered, *recipe);
  if (best_of(result.attempts) == nullptr) {
    if ((request.budget_to_fit.has_value() && request.budget_to_fit->none()) ||
        std::ranges::any_of(result.attempts, &Attempt::proved))
      return result;
    const bool lost = std::ranges::find(result.attempts, kOtherNumbers, &Attempt::reason) !=
                      result.attempts.end();
    PortfolioResult given = run_all(costs, units, {costs, units}, request, *recipe, !lost);
    return best_of(given.attempts) != nullptr ? std::move(given) : std::move(result);
  }
  if (request.budget.none()) return result;
  try {
    take_better(attempts_as_given(costs, units, request), result.attempts);
  } catch (const Cancelled&) {  // anytime: the plan that there is stays
    if (std::ranges::find(result.notes, kSearchStopped) == result.notes.end())
      result.notes.emplace_back(kSearchStopped);
  }
  return result;
}

std::optional<Placement> best_placement(const CostModel& costs, const PlanRequest& request) {
  const Units units(costs);
  if (prove_cannot_fit(costs, units).has_value()) return std::nullopt;
  try {
    const PortfolioResult found = run_portfolio(costs, units, request);
    const Attempt* best = best_of(found.attempts);
    if (best == nullptr) return std::nullopt;
    return best->placed->device;
  } catch (const Cancelled&) {  // anytime: the plan that there is outlives the search
    return std::nullopt;
  }
}

}  // namespace baechi
