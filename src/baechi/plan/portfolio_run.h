// SPDX-License-Identifier: Apache-2.0
// One run of several methods on one problem: what they place, a search from the best of it, a proof.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "baechi/place/placer.h"
#include "baechi/plan/attempt/attempt.h"
#include "baechi/plan/attempt/canonical_costs.h"
#include "baechi/plan/portfolio_result.h"
#include "baechi/plan/request/methods.h"
#include "baechi/plan/request/request.h"
#include "baechi/plan/search/search_on.h"
#include "baechi/plan/search/spending.h"

namespace baechi {

inline constexpr const char* kOtherNumbers = "its plan fits with another order of the file only";

// The problem as it was given. If the search is in its canonical numbering, that, and where the two
// may differ, the given one without idle operators.
struct Given {
  const CostModel& costs;
  const Units& units;
  const CanonicalCosts* canonical = nullptr;
  const CanonicalCosts* busy = nullptr;
  const KnownPlans* known = nullptr;  // where the search is in the given numbering
  std::int64_t spent = 0;             // before, in simulated operators: the search has less

  PlacedGraph to(const PlacedGraph& placed) const {
    return canonical != nullptr ? canonical->to_given(placed) : placed;
  }
  PlacedGraph from(const PlacedGraph& placed) const {
    return canonical != nullptr ? canonical->from_given(placed) : placed;
  }
};

class PortfolioRun {
 public:
  // Works on `costs`, which are the given ones or their canonical form.
  PortfolioRun(const CostModel& costs, const Units& units, const Given& given,
               const PlanRequest& request);

  void keep_no_fallbacks() { last_resort_.work = 0; }

  // Without other methods and a search.
  void place_alone(const PlacerEntry& placer);
  // Unless the budget is too short for it and something fits.
  void place(const PlacerEntry& placer);

  // Plans that lack memory, the shortest first; on larger graphs after all methods' own choices, which
  // may be enough.
  void repair();
  // Those that were not tried, or gave up, where none has a plan: each may have one by its name.
  void place_others();
  // Fall-backs are repairs alone.
  void search_for_none() { last_resort_.searched = true; }

  // From the best plan so far; `place_window` places windows of a graph that repeats.
  void search(PlaceWindow place_window);

  // Tries to prove the best plan so far optimal, or to find the optimum, with this share of the
  // budget; if asked, even where fall-backs have searched for any plan. True if there is nothing
  // left to search for.
  bool prove(double share, bool asked);
  // Plans without the slower devices, where devices differ: the search goes on from the best of them
  // where it is better, so that more devices are no worse.
  void place_on_faster(std::span<const PlacerEntry* const> placers, PlaceWindow place_window);
  bool has_plan() { return best() != nullptr; }
  void note(std::string text);
  void leave_out(std::string what) { left_out_.push_back(std::move(what)); }
  PortfolioResult take();

 private:
  bool are_few_and_unequal() const;  // the pairs of operators and devices, and the devices
  bool is_planned() const { return request_.place.order == ExecutionOrder::kPlanned; }

  // Of what searches have ended with.
  void prefer_robust(Attempt& refined);

  // What the table of methods does not show.
  void note_optimized(const Attempt& optimized);
  static bool by_proof(const Attempt& attempt);
  void keep(Attempt attempt);

  // In the numbering of the request, in which a plan may be another one (CanonicalCosts).
  void renumber(Attempt& attempt);

  // What the order of the file makes of a plan can be longer, and of a longer one shorter: some moves
  // from the best few. Each part of the search is followed as if there were no longer one.
  void search_as_given();
  LastResort new_resort() const;

  bool is_settled() const;
  // Whether worth its time among others or not.
  void try_placer(const PlacerEntry& placer, const PlaceOptions& options);
  // The end of a method that is asked for by name: the same search whichever it is and, on small
  // graphs, however the file is numbered. With so many simulated operators at least.
  void find_any_plan(Attempt& attempt, std::int64_t least = 0);
  const Attempt* best() const { return best_of(result_.attempts); }
  Problem problem();

  const CostModel& costs_;
  const Units& units_;
  const Given given_;
  const PlanRequest& request_;
  std::vector<OpId> decisions_;  // of the exact search, in the numbers of `given_.busy`
  std::unique_ptr<Shrunk> shrunk_;
  LastResort last_resort_;
  Spending spending_;
  PortfolioResult result_;
  std::optional<PlacedGraph> exact_plan_;  // of the exact search, which numbers as given
  std::vector<SearchPart> searched_;
  std::optional<Attempt> on_faster_;  // the best without slower devices
  std::size_t repaired_ = 0;          // of the attempts
  std::int64_t charged_ = 0;          // for the methods, in simulated operators
  std::int64_t spent_ = 0;            // beside them and the search
  std::vector<std::string> left_out_;
};

}  // namespace baechi
