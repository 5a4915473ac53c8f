// SPDX-License-Identifier: Apache-2.0
#include "baechi/plan/portfolio.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cmath>
#include <memory>
#include <utility>

#include "baechi/base/error.h"
#include "baechi/place/exact/exact.h"
#include "baechi/place/limits.h"
#include "baechi/place/partition/partition.h"
#include "baechi/place/topological_sequences.h"
#include "baechi/plan/canonical_costs.h"
#include "baechi/plan/fit_search.h"
#include "baechi/plan/fit_walk.h"
#include "baechi/plan/refine.h"
#include "baechi/plan/restarts.h"

namespace baechi {
namespace {

constexpr PortfolioEntry kMethods[] = {
    {"auto", "every method that can win, then a search from the best of them"},
    {"refine", "the paper's methods and chain, then a search from the best of them"},
    {"all", "auto, and every baseline to compare with"},
};

// Operators that the exact search looks at in a second of one core, about.
constexpr double kExactWorkPerSecond = 15e6;
// Of the budget: for a proof, before the search from the best plan.
constexpr double kShareOfProof = 0.25;
// The clock stops a search that takes so many times its budget, and so many seconds.
constexpr double kPatience = 5, kLeastPatience = 20;
constexpr std::array<std::string_view, 4> kSeveral{"auto", "refine", "all", "exact"};
constexpr const char* kOtherNumbers = "its plan fits with another order of the file only";

// Of the budget: for the search in the order of the file.
constexpr double kShareAsGiven = 0.3;

// The problem as it was given. If the search is in its canonical numbering, that, and where the two
// may differ, the given one without idle operators.
struct Given {
  const CostModel& costs;
  const Units& units;
  const CanonicalCosts* canonical = nullptr;
  const CanonicalCosts* busy = nullptr;
};

class Portfolio {
 public:
  // Works on `costs`, which are the given ones or their canonical form.
  Portfolio(const CostModel& costs, const Units& units, const Given& given,
            const PlanRequest& request)
      : costs_(costs),
        units_(units),
        given_(given),
        request_(request),
        last_resort_{.work = work_for_fit(costs.graph(), request.budget),
                     .seed = request.place.seed},
        work_at_first_(last_resort_.work) {
    if (given.busy != nullptr)
      for (const OpId op : critical_path_first_sequence(costs))
        decisions_.push_back(*given.busy->from_given(given.canonical->to_given(op)));
    if (request.optimize.level == OptimizeLevel::kNone) return;
    OptimizeOptions optimize = request.optimize;
    optimize.cancel = request.place.cancel;
    shrunk_ = std::make_unique<Shrunk>(costs, optimize);
    result_.passes = shrunk_->optimized.passes;
  }

  void keep_no_fallbacks() { last_resort_.work = 0; }

  void place(const PlacerEntry& placer) {
    if (placer.name == "expert" && request_.place.expert == nullptr) return;
    if (std::ranges::any_of(result_.attempts, &Attempt::proved))
      return;  // every placement was tried already
    Attempt optimized = attempt(problem(), placer, request_.place);
    if (!placer.optimizable || shrunk_ == nullptr) return keep(std::move(optimized));
    // Fewer operators to place is no promise of a shorter step: keep the better plan.
    Attempt plain = attempt({costs_, units_, nullptr, &last_resort_}, placer, request_.place);
    optimized.nanoseconds += plain.nanoseconds;
    if (!plain.placed.has_value() ||
        (optimized.placed.has_value() && optimized.makespan <= plain.makespan)) {
      note_optimized(optimized);
      return keep(std::move(optimized));
    }
    plain.nanoseconds = optimized.nanoseconds;
    if (optimized.placed.has_value())
      result_.notes.push_back(std::string(placer.name) +
                              ": the plan of the unoptimised graph was better and replaced the "
                              "optimised one");
    keep(std::move(plain));
  }

  // From the best plan so far.
  void search() {
    const Attempt* start = best();
    if (start == nullptr) return;
    const auto begin = std::chrono::steady_clock::now();
    deadline_ =
        begin +
        std::chrono::duration_cast<std::chrono::steady_clock::duration>(
            std::chrono::duration<double>(std::max(kLeastPatience, request_.budget * kPatience)));
    Attempt refined = *start;
    refined.method = "refine";
    refined.fallbacks.clear();
    restart(refined);
    search_elsewhere(refined);
    // Clusters of operators first, from coarse to fine: one move of the right cluster is worth
    // thousands of moves of single operators.
    std::vector<IdVector<OpId, std::uint32_t>> levels = traffic_levels(costs_, request_.place.seed);
    constexpr std::size_t kMostLevels = 3;
    if (levels.size() > kMostLevels) levels.resize(kMostLevels);
    for (const auto& labels : levels)
      search_from(refined, Units(costs_, labels), 0.4 / static_cast<double>(levels.size()));
    search_from(refined, units_, 0.1);
    refined.nanoseconds = std::chrono::duration_cast<std::chrono::nanoseconds>(
                              std::chrono::steady_clock::now() - begin)
                              .count();
    keep(std::move(refined));
    searched_ = true;
  }

  // Tries to prove the best plan so far optimal, or to find the optimum, with this share of the
  // budget. True if there is nothing left to search for.
  bool prove(double share) {
    if (std::ranges::any_of(result_.attempts, &Attempt::proved)) return true;
    if (!is_searchable(costs_)) {
      if (request_.method == "exact")
        note("exact: the graph is too large for a search over all plans");
      return false;
    }
    const Attempt* start = best();
    // Fall-backs have searched for any plan already, as far as the budget goes.
    if (start == nullptr && last_resort_.searched && request_.method != "exact") return false;
    const auto begin = std::chrono::steady_clock::now();
    // In the numbering of the request where that may make a difference: the bound is about it.
    const CanonicalCosts* const busy = given_.busy;
    const CostModel& costs = busy != nullptr ? busy->costs() : costs_;
    std::optional<PlacedGraph> to_beat;
    if (start != nullptr)
      to_beat = busy != nullptr ? busy->from_given(to_given(*start->placed)) : *start->placed;
    std::erase_if(result_.attempts, [](const Attempt& other) { return other.method == "exact"; });
    ExactResult found = solve_exactly(
        costs, {.work = static_cast<std::int64_t>(budget_left() * share * kExactWorkPerSecond),
                .start = to_beat.has_value() ? &*to_beat : nullptr,
                .sequence = decisions_,
                .cancel = request_.place.cancel});
    if (found.cancelled) stopped_early_ = true;
    Attempt exact;
    exact.method = "exact";
    exact.proved = found.complete && !found.placed.has_value();
    if (found.placed.has_value()) {
      if (busy != nullptr) {
        exact_plan_ = busy->to_given(*found.placed);
        found.placed = from_given(*exact_plan_);
      }
      offer_placement(problem(), *found.placed, exact);
      result_.bound = {"exact search", found.bound};
    } else {
      exact.reason = found.complete ? "every placement in every order runs out of memory"
                                    : "no plan that fits was met before the budget was spent";
    }
    exact.nanoseconds = std::chrono::duration_cast<std::chrono::nanoseconds>(
                            std::chrono::steady_clock::now() - begin)
                            .count();
    keep(std::move(exact));
    return found.complete;
  }

  void note(std::string text) {
    if (std::ranges::find(result_.notes, text) == result_.notes.end())
      result_.notes.push_back(std::move(text));
  }

  PortfolioResult take() {
    if (given_.canonical != nullptr)
      for (Attempt& attempt : result_.attempts) renumber(attempt);
    if (given_.busy != nullptr && searched_) search_as_given();
    if (stopped_early_)
      note("the search was stopped by the clock or by you: another run may find another plan");
    return std::move(result_);
  }

 private:
  // What the table of methods does not show.
  void note_optimized(const Attempt& optimized) {
    if (optimized.at_home && optimized.placed.has_value())
      result_.notes.push_back(optimized.method +
                              ": every group stays on the device that the optimizer cut it for");
  }

  void keep(Attempt attempt) { result_.attempts.push_back(std::move(attempt)); }

  // In the numbering of the request, in which a plan may be another one (CanonicalCosts).
  void renumber(Attempt& attempt) {
    if (attempt.misfit.has_value())
      attempt.misfit->op = given_.canonical->to_given(attempt.misfit->op);
    if (attempt.proved && given_.busy != nullptr) {
      const ExactResult again =
          solve_exactly(given_.busy->costs(), {.sequence = decisions_, .any = true});
      attempt.proved = again.complete && !again.placed.has_value();
      if (again.placed.has_value())
        attempt.placed = from_given(given_.busy->to_given(*again.placed));
    }
    const bool exact = attempt.method == "exact" && exact_plan_.has_value();
    if (!exact && !attempt.placed.has_value()) return;
    const PlacedGraph placed = exact ? *exact_plan_ : to_given(*attempt.placed);
    attempt.placed.reset();
    if (!offer_placement({given_.costs, given_.units}, placed, attempt))
      attempt.reason = kOtherNumbers;
  }

  PlacedGraph to_given(const PlacedGraph& placed) const {
    return given_.canonical != nullptr ? given_.canonical->to_given(placed) : placed;
  }
  PlacedGraph from_given(const PlacedGraph& placed) const {
    return given_.canonical != nullptr ? given_.canonical->from_given(placed) : placed;
  }

  // What the order of the file makes of a plan can be longer, and of a longer one shorter: some moves
  // from the best few.
  void search_as_given() {
    constexpr std::size_t kStarts = 4;
    const Problem given{given_.costs, given_.units};
    Attempt* const target = best();
    if (target == nullptr) return;
    std::vector<Attempt> starts{*target};
    for (const PlacedGraph& placed : seen_)
      if (Attempt start; offer_placement(given, to_given(placed), start))
        starts.push_back(std::move(start));
    std::ranges::stable_sort(starts, {}, &Attempt::makespan);
    starts.resize(std::min(starts.size(), kStarts));
    for (const Attempt& start : starts) {
      const Refined found = refine(given_.costs, given_.units, *start.placed,
                                   options(kShareAsGiven / static_cast<double>(kStarts)));
      if (found.stopped_early) stopped_early_ = true;
      offer_placement(given, found.placed, *target);
    }
  }

  Attempt* best() {
    Attempt* best = nullptr;
    for (Attempt& attempt : result_.attempts)
      if (attempt.placed.has_value() && (best == nullptr || attempt.makespan < best->makespan))
        best = &attempt;
    return best;
  }

  // What fall-backs have not used up, in seconds; half of it is for the search.
  double budget_left() const {
    const auto spent = static_cast<double>(work_at_first_ - last_resort_.work);
    return std::max(request_.budget / 2, request_.budget - spent / kSimulatedOpsPerSecond);
  }

  RefineOptions options(double share) const {
    return {.work = static_cast<std::int64_t>(budget_left() * share * kSimulatedOpsPerSecond),
            .seed = request_.place.seed,
            .threads = request_.threads,
            .deadline = deadline_,
            .cancel = request_.place.cancel};
  }

  void restart(Attempt& refined) {
    const auto offer_all = [&](const std::vector<PlacedGraph>& found) {
      for (const PlacedGraph& placed : found) offer_placement(problem(), placed, refined);
    };
    const auto further = [&](double share) {
      return RestartOptions{.work = options(share).work,
                            .place = request_.place,
                            .threads = request_.threads,
                            .must_stop = [this] { return must_stop(); }};
    };
    offer_all(further_partitions(costs_, further(0.35)));
    offer_all(further_cuts(costs_, units_, further(0.15)));
  }

  // Small graphs: also from plans that have nothing in common with the best one.
  void search_elsewhere(Attempt& refined) {
    constexpr std::size_t kSmall = 64;  // operators
    constexpr std::uint64_t kStarts = 8;
    if (costs_.graph().num_ops() > kSmall) return;
    const RefineOptions effort = options(0.4 / kStarts);
    for (std::uint64_t i = 1; i <= kStarts && !must_stop(); ++i) {
      const std::uint64_t seed = request_.place.seed + i;
      const FitWalked start =
          walk_to_fit(costs_, units_, {.simulated_ops = effort.work / 4, .seed = seed});
      if (!start.placed.has_value()) continue;
      RefineOptions varied = effort;
      varied.seed = seed;
      seen_.push_back(refine(costs_, units_, *start.placed, varied).placed);
      offer_placement(problem(), seen_.back(), refined);
    }
  }

  bool must_stop() {
    const bool stop = std::chrono::steady_clock::now() >= deadline_ ||
                      (request_.place.cancel != nullptr && request_.place.cancel->requested());
    if (stop) stopped_early_ = true;
    return stop;
  }

  void search_from(Attempt& refined, const Units& units, double share) {
    const Refined found = refine(costs_, units, *refined.placed, options(share));
    if (found.stopped_early) stopped_early_ = true;
    offer_placement(problem(), found.placed, refined);
    seen_.push_back(found.placed);
  }

  Problem problem() { return {costs_, units_, shrunk_.get(), &last_resort_}; }

  const CostModel& costs_;
  const Units& units_;
  const Given given_;
  const PlanRequest& request_;
  std::vector<OpId> decisions_;  // of the exact search, in the numbers of `given_.busy`
  std::unique_ptr<Shrunk> shrunk_;
  LastResort last_resort_;
  const std::int64_t work_at_first_;
  PortfolioResult result_;
  std::optional<PlacedGraph> exact_plan_;  // of the exact search, which numbers as given
  std::chrono::steady_clock::time_point deadline_;
  bool searched_ = false;
  std::vector<PlacedGraph> seen_;  // where searches have ended
  std::atomic<bool> stopped_early_{false};
};

PortfolioResult run_all(const CostModel& costs, const Units& units, const Given& given,
                        const PlanRequest& request) {
  Portfolio portfolio(costs, units, given, request);
  const std::string& method = request.method;
  for (const PlacerEntry& placer : all_placers())
    if (placer.name != "exact" &&
        (method == "all" || (placer.name != "random" && placer.name != "expert")))
      portfolio.place(placer);
  if (method == "refine" || !portfolio.prove(kShareOfProof)) {
    portfolio.search();
    if (method == "exact") portfolio.prove(1.0);
  }
  return portfolio.take();
}

// What the methods place by their own choices in the order of the file: `auto` is no worse than
// any.
std::vector<Attempt> attempts_as_given(const CostModel& costs, const Units& units,
                                       const PlanRequest& request) {
  Portfolio portfolio(costs, units, {costs, units}, request);
  portfolio.keep_no_fallbacks();
  for (const PlacerEntry& placer : all_placers())
    if (placer.name != "exact" && !placer.baseline) portfolio.place(placer);
  return portfolio.take().attempts;
}

void take_better(std::vector<Attempt> others, std::vector<Attempt>& attempts) {
  for (Attempt& other : others)
    for (Attempt& attempt : attempts)
      if (attempt.method == other.method && other.placed.has_value() &&
          (!attempt.placed.has_value() || other.makespan < attempt.makespan)) {
        other.nanoseconds += attempt.nanoseconds;
        attempt = std::move(other);
        break;
      }
}

}  // namespace

std::span<const PortfolioEntry> portfolio_methods() { return kMethods; }

PortfolioResult run_portfolio(const CostModel& costs, const Units& units,
                              const PlanRequest& request) {
  check_threads(request.threads);
  check_lp_threshold(request.place.lp_threshold);
  if (request.method == "expert" && request.place.expert == nullptr)
    throw InputError("the method 'expert' needs a placement to follow");
  if (std::ranges::find(kSeveral, request.method) == kSeveral.end()) {
    Portfolio portfolio(costs, units, {costs, units}, request);
    portfolio.place(find_placer(request.method));
    return portfolio.take();
  }
  if (costs.graph().num_ops() > kMostCanonicalOps)
    return run_all(costs, units, {costs, units}, request);

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
  PortfolioResult result =
      run_all(canonical.costs(), canonical_units,
              {costs, units, &canonical, busy.has_value() ? &*busy : nullptr}, renumbered);
  const bool fits = std::ranges::any_of(
      result.attempts, [](const Attempt& attempt) { return attempt.placed.has_value(); });
  const bool lost = std::ranges::any_of(
      result.attempts, [](const Attempt& attempt) { return attempt.reason == kOtherNumbers; });
  if (!fits && lost) return run_all(costs, units, {costs, units}, request);
  if (fits) take_better(attempts_as_given(costs, units, request), result.attempts);
  return result;
}

}  // namespace baechi
