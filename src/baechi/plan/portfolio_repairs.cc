// SPDX-License-Identifier: Apache-2.0
// What a portfolio does where its methods' own choices lack memory.
#include <algorithm>
#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "baechi/place/placer.h"
#include "baechi/plan/attempt/canonical_costs.h"
#include "baechi/plan/attempt/search_log.h"
#include "baechi/plan/fit/any_fit.h"
#include "baechi/plan/portfolio_run.h"
#include "baechi/plan/request/budget.h"
#include "baechi/plan/request/methods.h"

namespace baechi {

void PortfolioRun::repair() {
  std::vector<Attempt*> lacking;
  for (; repaired_ < result_.attempts.size(); ++repaired_)
    if (Attempt& attempt = result_.attempts[repaired_]; attempt.may_be_repaired())
      lacking.push_back(&attempt);
  const auto step = [](const Attempt* attempt) {
    return attempt->misfit_plan.has_value() ? attempt->misfit_plan->makespan
                                            : Time(std::numeric_limits<std::int64_t>::max());
  };
  std::ranges::stable_sort(lacking, {}, step);
  for (Attempt* attempt : lacking) {
    if (last_resort_.work == 0 || std::ranges::any_of(result_.attempts, &Attempt::proved)) return;
    baechi::repair(problem(), request_.place.cancel, *attempt);
    if (attempt->placed.has_value()) tell(request_, attempt->makespan, attempt->method);
  }
}

void PortfolioRun::find_any_plan(Attempt& attempt, std::int64_t least) {
  const CancelFlag* const cancel = request_.place.cancel;
  const Problem problem = this->problem();
  const auto search = [&](const CostModel& costs, const CanonicalCosts* canonical) {
    LastResort resort = new_resort();
    resort.work = std::max(resort.work, least);
    search_any_fit(costs, Units(costs), cancel, resort);
    for (std::string& name : resort.fallbacks)
      if (std::ranges::find(attempt.fallbacks, name) == attempt.fallbacks.end())
        attempt.fallbacks.push_back(std::move(name));
    if (resort.placed.has_value() &&
        offer_placement(problem,
                        canonical != nullptr ? canonical->to_given(*resort.placed) : *resort.placed,
                        attempt))
      attempt.reason.clear();
    return resort;
  };
  if (is_planned() && costs_.graph().num_ops() <= kMostCanonicalOps) {
    const CanonicalCosts canonical(costs_);
    const LastResort resort = search(canonical.costs(), &canonical);
    // Queues may make another plan of it: then the answer is about other numbers.
    const bool is_told = resort.placed.has_value() || resort.proved;
    if (attempt.placed.has_value() || !is_told) return;
    if (costs_.cluster().communication() == CommunicationMode::kParallel) {
      attempt.proved = resort.proved;
      return;
    }
  }
  attempt.proved = search(costs_, nullptr).proved;
}

LastResort PortfolioRun::new_resort() const {
  std::int64_t care =
      most_work_of_methods(request_, costs_.graph()) + request_.budget.part(Share::kCare).replays();
  for (const PlacerEntry* placer : placers_of(request_.method))
    if (const std::int64_t work = work_of(*placer, costs_); work <= care) care -= work;
  return {.work = request_.budget_to_fit.has_value()
                      ? request_.budget_to_fit->replays()
                      : work_for_fit(costs_.graph(), request_.budget),
          .care = care,
          .repairs = request_.budget.part(Share::kRepairs).replays(),
          .care_to_fit = most_work_of_methods(request_, costs_.graph()),
          .seed = request_.place.seed,
          .order = request_.place.order};
}

}  // namespace baechi
