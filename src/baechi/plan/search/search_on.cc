// SPDX-License-Identifier: Apache-2.0
#include "baechi/plan/search/search_on.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <optional>
#include <utility>

#include "baechi/base/parallel.h"
#include "baechi/graph/repetition.h"
#include "baechi/place/partition/partition.h"
#include "baechi/plan/attempt/search_log.h"
#include "baechi/plan/fit/fit_walk.h"
#include "baechi/plan/request/budget.h"
#include "baechi/plan/search/refine.h"
#include "baechi/plan/search/restarts.h"

namespace baechi {
namespace {

// What the searches of all budgets have in common.
struct Searched {
  Searched(const Problem& problem, const PlanRequest& request) {
    constexpr std::size_t kMostLevels = 3;
    parallel_for(2, request.threads, [&](std::size_t task) {
      if (task == 0)
        repetitions = find_repetitions(problem.costs.graph(), kLeastPeriods);
      else
        levels = traffic_levels(problem.costs, request.place.seed);
    });
    if (levels.size() > kMostLevels) levels.resize(kMostLevels);
    if (!repetitions.empty()) images.emplace(problem.costs.graph(), repetitions);
  }

  std::vector<Repetition> repetitions;
  std::vector<IdVector<OpId, std::uint32_t>> levels;  // of clusters that moves are of
  std::optional<Images> images;                       // where something repeats
};

// One search: how long it is planned to be, what is added to the request's seed, and after how much
// of it the budget ends: what the search does until then does not depend on that.
struct Part {
  Budget budget = 0;
  std::uint64_t seed = 0;
  std::optional<Budget> end = {};
};

// One search, with its own part of the budget.
class SearchOn {
 public:
  SearchOn(const Problem& problem, const PlanRequest& request, const Searched& searched,
           const Spending& spending, const Part& part, const Attempt& start,
           PlaceWindow place_window)
      : problem_(problem),
        request_(request),
        seed_(request.place.seed + part.seed),
        place_window_(place_window),
        repetitions_(searched.repetitions),
        levels_(searched.levels),
        images_(searched.images),
        spending_(spending, part.budget),
        left_(part.end),
        best_(start) {
    if (left_.has_value()) left_ = left_->part(1 + Share::kElsewhere);
  }

  void run() {
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

  const Attempt& best() const { return best_; }
  std::vector<PlacedGraph>& ends() { return ends_; }
  bool stopped_early() const { return spending_.stopped_early(); }

 private:
  // What repeats is planned once; the other searches share what is left.
  void plan_periods() {
    if (repetitions_.empty()) return;
    const Budget budget = up_to_end(spending_.left().part(Share::kPeriods));
    const PeriodPlans found = plans_by_period(
        problem_.costs, problem_.units, repetitions_, *best_.placed,
        {.budget = budget, .request = request_, .place_window = place_window_, .must_stop = [this] {
           return spending_.is_over();
         }});
    use(found.spent);
    others_ -= Share::kPeriods * found.spent.seconds / budget.seconds;
    for (const PlacedGraph& placed : found.plans) offer(placed, "refine: periods");
  }

  bool is_small() const { return problem_.costs.graph().num_ops() <= kSmallGraph; }

  // Moves are few and change little: one more cut is worth more.
  bool is_large() const {
    constexpr std::size_t kLarge = 10'000;  // operators
    return problem_.costs.graph().num_ops() > kLarge;
  }

  // From partitions and cuts of other seeds.
  void restart() {
    const auto further = [&](double part, const auto& restarts, const char* by) {
      const double share = share_of(part);
      const Budget planned = spending_.left().part(share), budget = up_to_end(planned);
      PlaceOptions place = request_.place;
      place.seed = seed_;
      const Restarts found = restarts(RestartOptions{.work = budget.replays(),
                                                     .place = place,
                                                     .threads = request_.threads,
                                                     .must_stop = [this] { return is_over(); }});
      use(Budget::of_replays(static_cast<double>(found.work)));
      if (budget.seconds < planned.seconds) left_ = 0;
      for (const Restarts::Found& plan : found.plans)
        if (!plan.step.has_value() || *plan.step < best_.makespan) offer(plan.placed, by);
      const auto all = static_cast<double>(std::max<std::int64_t>(spending_.left().replays(), 1));
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
    constexpr std::uint64_t kStarts = 8;
    if (!is_small()) return;
    RefineOptions effort = spending_.refinement(Share::kElsewhere / kStarts);
    for (std::uint64_t i = 1; i <= kStarts && !is_over(); ++i) {
      effort.seed = seed_ + i;
      const Budget walk = spending_.left().part(Share::kElsewhere / kStarts / 4);
      const FitWalked start = walk_to_fit(problem_.costs, problem_.units,
                                          {.simulated_ops = up_to_end(walk).replays(),
                                           .seed = effort.seed,
                                           .order = request_.place.order});
      use(Budget::of_replays(static_cast<double>(start.work)));
      if (!start.placed.has_value()) continue;
      const Refined found = refined(problem_.units, *start.placed, effort);
      offer(found.placed, "refine: elsewhere");
      ends_.push_back(found.placed);
    }
  }

  // By moves of `units`, from the best plan.
  void search_by(const Units& units, double part, const char* name) {
    if (is_over()) return;
    const double share = share_of(part);
    RefineOptions effort = spending_.refinement(share);
    if (moves_in(effort.work, problem_.costs.graph()) < kFewMoves) return spend(part, 0);
    effort.seed = seed_;
    effort.on_better = [&](Time step) { tell(request_, step, name); };
    if (images_.has_value()) effort.images = &*images_;
    const Refined found = refined(units, *best_.placed, effort);
    spending_.note_stop(found.stopped_early);
    offer(found.placed, name);
    ends_.push_back(found.placed);
    spend(part, share);
  }

  Refined refined(const Units& units, const PlacedGraph& start, RefineOptions effort) {
    if (left_.has_value()) effort.end = std::clamp<std::int64_t>(left_->refines(), 0, effort.work);
    use(Budget::of_refines(static_cast<double>(effort.end)));
    return refine(problem_.costs, units, start, effort);
  }

  Budget up_to_end(Budget planned) const {
    if (!left_.has_value()) return planned;
    return std::clamp(left_->seconds, 0.0, planned.seconds);
  }
  void use(Budget spent) {
    if (left_.has_value()) left_->spend(spent);
  }
  bool is_over() { return (left_.has_value() && left_->seconds <= 0) || spending_.is_over(); }

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
  const std::uint64_t seed_;
  const PlaceWindow place_window_;
  const std::vector<Repetition>& repetitions_;
  const std::vector<IdVector<OpId, std::uint32_t>>& levels_;
  const std::optional<Images>& images_;
  Spending spending_;
  std::optional<Budget> left_;  // until it ends, where that is before its time
  Attempt best_;
  double others_ = 1;      // of the budget: what is left for those that follow the periods,
  double parts_left_ = 1;  // and the sum of their parts
  std::vector<PlacedGraph> ends_;
};

// Small graphs: longer searches of other seeds follow the first ones, whatever the budget, and the
// last one ends with it. So a longer budget does what a shorter one does, and goes on, except for
// budgets that are shorter than the first search.
std::vector<Part> parts_of_small(Budget budget, Budget longest) {
  constexpr double kFirst[] = {0.1, 0.1, 0.3, 0.5};  // of the longest one: 0.1, 0.2, 0.5, all of it
  constexpr std::uint64_t kBetweenSeeds = 1'000;
  constexpr double kNothing = 1e-6;  // seconds
  // What fall-backs took is at most half of it.
  if (budget.seconds + kNothing < longest.part(kFirst[0] / 2).seconds) return {{.budget = budget}};
  std::vector<Part> parts;
  while (budget.seconds > kNothing) {
    const std::size_t i = parts.size();
    const Budget length = i < std::size(kFirst) ? longest.part(kFirst[i]) : longest;
    parts.push_back({.budget = length, .seed = kBetweenSeeds * i});
    if (budget.seconds + kNothing < length.seconds) parts.back().end = budget;
    budget.spend(length);
  }
  return parts;
}

// Where a search ends depends on its budget in many ways, and a longer one can end worse. So there
// are some of shorter budgets, each as if it were the only one.
std::vector<Part> parts_of(Budget budget, const SearchOnOptions& options, const OpGraph& graph) {
  constexpr double kLonger = 5, kTimes = 10;
  if (graph.num_ops() <= kSmallGraph) return parts_of_small(budget, options.of_small);
  std::vector<Part> parts;
  double first = options.first;
  while (first * kLonger <= budget.seconds) {
    parts.push_back({.budget = first});
    first *= kTimes;
  }
  parts.push_back({.budget = budget});
  return parts;
}

}  // namespace

std::vector<SearchPart> search_on(const Problem& problem, const PlanRequest& request,
                                  Spending& spending, Attempt& best,
                                  const SearchOnOptions& options) {
  const Crew crew(request.threads);
  spending.start_clock();
  const Searched searched(problem, request);
  const std::vector<Part> divided = parts_of(spending.left(), options, problem.costs.graph());
  const Attempt start = best;
  std::vector<std::optional<SearchOn>> searches(divided.size());
  parallel_for(divided.size(), request.threads, [&](std::size_t i) {
    if (i > 0 && spending.is_over()) return;
    searches[i]
        .emplace(problem, request, searched, spending, divided[i], start, options.place_window)
        .run();
  });
  std::vector<SearchPart> parts;
  for (std::size_t i = 0; i < divided.size(); ++i) {
    if (!searches[i].has_value()) continue;
    spending.note_stop(searches[i]->stopped_early());
    if (searches[i]->best().makespan < best.makespan) best = searches[i]->best();
    parts.push_back(
        {divided[i].end.value_or(divided[i].budget), std::move(searches[i]->ends()), *best.placed});
  }
  return parts;
}

}  // namespace baechi
