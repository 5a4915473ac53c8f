// SPDX-License-Identifier: Apache-2.0
#include "baechi/plan/search_on.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>

#include "baechi/graph/repetition.h"
#include "baechi/place/partition/partition.h"
#include "baechi/plan/fit_walk.h"
#include "baechi/plan/improvements.h"
#include "baechi/plan/period_plans.h"
#include "baechi/plan/refine.h"
#include "baechi/plan/restarts.h"

namespace baechi {
namespace {

class SearchOn {
 public:
  SearchOn(const Problem& problem, const PlanRequest& request, Budget& budget, Attempt& best)
      : problem_(problem),
        request_(request),
        budget_(budget),
        best_(best),
        repetitions_(find_repetitions(problem.costs.graph(), kLeastPeriods)),
        levels_(traffic_levels(problem.costs, request.place.seed)) {
    constexpr std::size_t kMostLevels = 3;
    if (levels_.size() > kMostLevels) levels_.resize(kMostLevels);
    if (!repetitions_.empty()) images_.emplace(problem.costs.graph(), repetitions_);
  }

  // Where a search ends depends on its budget in many ways, and a longer one can end worse. So some
  // of shorter budgets come first, each as if it were the only one.
  std::vector<SearchPart> run() {
    budget_.start_clock();
    const Attempt start = best_;
    Attempt shortest = start;
    const auto search = [&](double seconds) {
      if (!parts_.empty() && budget_.is_over()) return;
      best_ = start;
      run_for(seconds);
      if (best_.makespan < shortest.makespan) shortest = best_;
      parts_.back().best = *shortest.placed;
    };
    double seconds = kShorter;
    while (seconds * kLonger <= request_.budget) {
      search(seconds);
      seconds *= 10;
    }
    search(request_.budget);
    best_ = std::move(shortest);
    return std::move(parts_);
  }

 private:
  static constexpr double kShorter = 0.1, kLonger = 5;

  void run_for(double seconds) {
    budget_.divide(seconds);
    parts_.push_back({.seconds = seconds});
    others_ = 1;
    parts_left_ = 1;
    plan_periods();
    restart();
    search_elsewhere();
    // Clusters of operators first, from coarse to fine: one move of the right cluster is worth
    // thousands of moves of single operators.
    const double share = is_large() ? Share::kClustersOfLarge : Share::kClusters;
    for (const auto& labels : levels_)
      search_by(Units(problem_.costs, labels), share / static_cast<double>(levels_.size()),
                "refine: clusters");
    search_by(problem_.units, Share::kOperators, "refine: operators");
  }

  // What repeats is planned once; the other searches share what is left.
  void plan_periods() {
    if (repetitions_.empty()) return;
    const double budget = budget_.seconds(Share::kPeriods);
    const PeriodPlans found = plans_by_period(
        problem_.costs, problem_.units, repetitions_, *best_.placed,
        {.budget = budget, .request = request_, .must_stop = [this] { return budget_.is_over(); }});
    others_ -= Share::kPeriods * found.spent / budget;
    for (const PlacedGraph& placed : found.plans) offer(placed, "refine: periods");
  }

  // Moves are few and change little: one more cut is worth more.
  bool is_large() const {
    constexpr std::size_t kLarge = 10'000;  // operators
    return problem_.costs.graph().num_ops() > kLarge;
  }

  // From partitions and cuts of other seeds.
  void restart() {
    const auto further = [&](double part, const auto& restarts, const char* by) {
      const double share = share_of(part);
      const Restarts found =
          restarts(RestartOptions{.work = budget_.replays(share),
                                  .place = request_.place,
                                  .threads = request_.threads,
                                  .must_stop = [this] { return budget_.is_over(); }});
      for (const Restarts::Found& plan : found.plans)
        if (!plan.step.has_value() || *plan.step < best_.makespan) offer(plan.placed, by);
      const auto all = static_cast<double>(std::max<std::int64_t>(budget_.replays(1), 1));
      spend(part, static_cast<double>(found.work) / all);
    };
    further(
        is_large() ? Share::kPartitionsOfLarge : Share::kPartitions,
        [&](const RestartOptions& options) { return further_partitions(problem_.costs, options); },
        "refine: partitions");
    further(
        is_large() ? Share::kCutsOfLarge : Share::kCuts,
        [&](RestartOptions options) {
          // Where cuts lag behind, as with little memory, moves of clusters get what they leave.
          if (is_large() && request_.place.order == ExecutionOrder::kPlanned)
            options.to_beat = best_.makespan;
          return further_cuts(problem_.costs, problem_.units, options);
        },
        "refine: cuts");
  }

  // Small graphs: also from plans that have nothing in common with the best one.
  void search_elsewhere() {
    constexpr std::size_t kSmall = 64;  // operators
    constexpr std::uint64_t kStarts = 8;
    if (problem_.costs.graph().num_ops() > kSmall) return;
    RefineOptions effort = budget_.refinement(Share::kElsewhere / kStarts);
    for (std::uint64_t i = 1; i <= kStarts && !budget_.is_over(); ++i) {
      effort.seed = request_.place.seed + i;
      const FitWalked start =
          walk_to_fit(problem_.costs, problem_.units,
                      {.simulated_ops = budget_.replays(Share::kElsewhere / kStarts / 4),
                       .seed = effort.seed,
                       .order = request_.place.order});
      if (!start.placed.has_value()) continue;
      PlacedGraph found = refine(problem_.costs, problem_.units, *start.placed, effort).placed;
      offer(found, "refine: elsewhere");
      parts_.back().ends.push_back(std::move(found));
    }
  }

  // By moves of `units`, from the best plan.
  void search_by(const Units& units, double part, const char* name) {
    const double share = share_of(part);
    RefineOptions effort = budget_.refinement(share);
    effort.on_better = [&](Time step) { tell(request_, step, name); };
    if (images_.has_value()) effort.images = &*images_;
    const Refined found = refine(problem_.costs, units, *best_.placed, effort);
    budget_.note_stop(found.stopped_early);
    offer(found.placed, name);
    parts_.back().ends.push_back(found.placed);
    spend(part, share);
  }

  // What one search leaves is the later ones'.
  double share_of(double part) const { return others_ * part / parts_left_; }
  void spend(double part, double share) {
    parts_left_ = std::max(parts_left_ - part, 1e-9);
    others_ = std::max(others_ - share, 0.0);
  }

  void offer(const PlacedGraph& placed, const char* by) {
    if (offer_placement(problem_, placed, best_)) tell(request_, best_.makespan, by);
  }

  const Problem& problem_;
  const PlanRequest& request_;
  Budget& budget_;
  Attempt& best_;
  const std::vector<Repetition> repetitions_;
  std::vector<IdVector<OpId, std::uint32_t>> levels_;  // of clusters that moves are of
  std::optional<Images> images_;                       // where something repeats
  double others_ = 1;      // of the budget: what is left for those that follow the periods,
  double parts_left_ = 1;  // and the sum of their parts
  std::vector<SearchPart> parts_;
};

}  // namespace

std::vector<SearchPart> search_on(const Problem& problem, const PlanRequest& request,
                                  Budget& budget, Attempt& best) {
  return SearchOn(problem, request, budget, best).run();
}

}  // namespace baechi
