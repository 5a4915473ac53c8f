// SPDX-License-Identifier: Apache-2.0
#include "baechi/plan/search/search_on.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>

#include "baechi/base/parallel.h"
#include "baechi/graph/repetition.h"
#include "baechi/place/partition/partition.h"
#include "baechi/plan/attempt/improvements.h"
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

// One search: how long, and what is added to the request's seed.
struct Part {
  Budget budget = 0;
  std::uint64_t seed = 0;
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
        best_(start) {}

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
    const Budget budget = spending_.left().part(Share::kPeriods);
    const PeriodPlans found = plans_by_period(
        problem_.costs, problem_.units, repetitions_, *best_.placed,
        {.budget = budget, .request = request_, .place_window = place_window_, .must_stop = [this] {
           return spending_.is_over();
         }});
    others_ -= Share::kPeriods * found.spent.seconds / budget.seconds;
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
      PlaceOptions place = request_.place;
      place.seed = seed_;
      const Restarts found =
          restarts(RestartOptions{.work = spending_.left().part(share).replays(),
                                  .place = place,
                                  .threads = request_.threads,
                                  .must_stop = [this] { return spending_.is_over(); }});
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
    if (problem_.costs.graph().num_ops() > kSmallGraph) return;
    RefineOptions effort = spending_.refinement(Share::kElsewhere / kStarts);
    for (std::uint64_t i = 1; i <= kStarts && !spending_.is_over(); ++i) {
      effort.seed = seed_ + i;
      const FitWalked start = walk_to_fit(
          problem_.costs, problem_.units,
          {.simulated_ops = spending_.left().part(Share::kElsewhere / kStarts / 4).replays(),
           .seed = effort.seed,
           .order = request_.place.order});
      if (!start.placed.has_value()) continue;
      PlacedGraph found = refine(problem_.costs, problem_.units, *start.placed, effort).placed;
      offer(found, "refine: elsewhere");
      ends_.push_back(std::move(found));
    }
  }

  // By moves of `units`, from the best plan.
  void search_by(const Units& units, double part, const char* name) {
    const double share = share_of(part);
    RefineOptions effort = spending_.refinement(share);
    if (moves_in(effort.work, problem_.costs.graph()) < kFewMoves) return spend(part, 0);
    effort.seed = seed_;
    effort.on_better = [&](Time step) { tell(request_, step, name); };
    if (images_.has_value()) effort.images = &*images_;
    const Refined found = refine(problem_.costs, units, *best_.placed, effort);
    spending_.note_stop(found.stopped_early);
    offer(found.placed, name);
    ends_.push_back(found.placed);
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
  const std::uint64_t seed_;
  const PlaceWindow place_window_;
  const std::vector<Repetition>& repetitions_;
  const std::vector<IdVector<OpId, std::uint32_t>>& levels_;
  const std::optional<Images>& images_;
  Spending spending_;
  Attempt best_;
  double others_ = 1;      // of the budget: what is left for those that follow the periods,
  double parts_left_ = 1;  // and the sum of their parts
  std::vector<PlacedGraph> ends_;
};

// Where a search ends depends on its budget in many ways, and a longer one can end worse. So there
// are some of shorter budgets, each as if it were the only one. On small graphs several with other
// seeds end better than a longer one.
std::vector<Part> parts_of(Budget budget, const SearchOnOptions& options, const OpGraph& graph) {
  constexpr double kLonger = 5, kTimes = 10;
  constexpr std::uint64_t kBetweenSeeds = 1'000;
  const bool is_small = graph.num_ops() <= kSmallGraph;
  std::vector<Part> parts;
  double seconds = options.first;
  const double longest = is_small ? std::min(budget.seconds, options.of_small) : budget.seconds;
  while (seconds * kLonger <= longest) {
    parts.push_back({.budget = seconds});
    seconds *= kTimes;
  }
  std::uint64_t seed = 0;
  while (is_small && budget.seconds >= 2 * options.of_small) {
    parts.push_back({.budget = options.of_small, .seed = seed});
    budget.spend(options.of_small);
    seed += kBetweenSeeds;
  }
  parts.push_back({.budget = budget, .seed = seed});
  return parts;
}

}  // namespace

std::vector<SearchPart> search_on(const Problem& problem, const PlanRequest& request,
                                  Spending& spending, Attempt& best,
                                  const SearchOnOptions& options) {
  const Crew crew(request.threads);
  spending.start_clock();
  const Searched searched(problem, request);
  const std::vector<Part> divided = parts_of(spending.all(), options, problem.costs.graph());
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
    parts.push_back({divided[i].budget, std::move(searches[i]->ends()), *best.placed});
  }
  return parts;
}

}  // namespace baechi
