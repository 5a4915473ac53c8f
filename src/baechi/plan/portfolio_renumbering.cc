// SPDX-License-Identifier: Apache-2.0
// What plans in canonical numbers are in those of the request.
#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

#include "baechi/place/exact/exact.h"
#include "baechi/plan/portfolio_run.h"
#include "baechi/plan/request/budget.h"
#include "baechi/plan/search/refine.h"

namespace baechi {

void PortfolioRun::renumber(Attempt& attempt) {
  if (attempt.misfit.has_value())
    attempt.misfit->op = given_.canonical->to_given(attempt.misfit->op);
  if (attempt.proved && given_.busy != nullptr) {
    const ExactResult again =
        solve_exactly(given_.busy->costs(), {.sequence = decisions_, .any = true});
    attempt.proved = again.complete && !again.placed.has_value();
    if (!attempt.proved) attempt.reason = again.placed.has_value() ? "" : kOtherNumbers;
    if (again.placed.has_value())
      attempt.placed = given_.from(given_.busy->to_given(*again.placed));
  }
  const bool exact = by_proof(attempt) && exact_plan_.has_value();
  if (!exact && !attempt.placed.has_value()) return;
  const PlacedGraph placed = exact ? *exact_plan_ : given_.to(*attempt.placed);
  attempt.placed.reset();
  if (!offer_placement({given_.costs, given_.units}, placed, attempt))
    attempt.reason = kOtherNumbers;
}

void PortfolioRun::search_as_given() {
  if (searched_.empty()) return;
  constexpr std::size_t kStarts = 4;
  const Problem given{given_.costs, given_.units};
  const CanonicalCosts& busy = *given_.busy;  // idle operators change no move
  const Units units(busy.costs());
  Attempt& refined = *std::ranges::find(result_.attempts, nullptr, &Attempt::placer);
  Attempt best;  // of all that the first part of the search could start from, then of the parts
  for (const Attempt& other : result_.attempts)
    if (&other != &refined && other.placed.has_value() && !by_proof(other))
      offer_placement(given, *other.placed, best);
  for (const SearchPart& part : searched_) {
    const Spending spending(spending_, part.budget);
    offer_placement(given, given_.to(part.best), best);
    std::vector<Attempt> starts;
    if (best.placed.has_value()) starts.push_back(best);
    for (const PlacedGraph& placed : part.ends)
      if (Attempt start; offer_placement(given, given_.to(placed), start))
        starts.push_back(std::move(start));
    std::ranges::stable_sort(starts, {}, &Attempt::makespan);
    // Most often one of them is the best one.
    const auto same = [](const Attempt& a, const Attempt& b) { return a.placed == b.placed; };
    starts.erase(std::unique(starts.begin(), starts.end(), same), starts.end());
    starts.resize(std::min(starts.size(), kStarts));
    for (const Attempt& start : starts) {
      const Refined found = refine(busy.costs(), units, busy.from_given(*start.placed),
                                   spending.refinement(Share::kAsGiven / kStarts));
      spending_.note_stop(found.stopped_early);
      offer_placement(given, busy.to_given(found.placed), best);
    }
  }
  if (best.placed.has_value() && offer_placement(given, *best.placed, refined))
    refined.reason.clear();
}

}  // namespace baechi
