// SPDX-License-Identifier: Apache-2.0
#include "baechi/plan/portfolio.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <memory>
#include <utility>

#include "baechi/base/error.h"
#include "baechi/base/parallel.h"
#include "baechi/optimize/cut_partition.h"
#include "baechi/place/exact.h"
#include "baechi/place/limits.h"
#include "baechi/place/partition.h"
#include "baechi/plan/fit_search.h"
#include "baechi/plan/refine.h"

namespace baechi {
namespace {

constexpr PortfolioEntry kMethods[] = {
    {"auto", "every method that can win, then a search from the best of them"},
    {"refine", "the paper's methods and chain, then a search from the best of them"},
    {"all", "auto, and every baseline to compare with"},
};

// Operators that the simulator replays in a second of one core, about: what a second of budget
// buys.
constexpr double kWorkPerSecond = 5e6;
// Operators that the exact search looks at in a second of one core, about.
constexpr double kExactWorkPerSecond = 15e6;
// Of the budget: for a proof, before the search from the best plan.
constexpr double kShareOfProof = 0.25;
// The clock stops a search that takes so many times its budget, and so many seconds.
constexpr double kPatience = 5, kLeastPatience = 20;

class Portfolio {
 public:
  Portfolio(const CostModel& costs, const Units& units, const PlanRequest& request)
      : costs_(costs), units_(units), request_(request) {
    if (request.optimize.level == OptimizeLevel::kNone) return;
    OptimizeOptions optimize = request.optimize;
    optimize.cancel = request.place.cancel;
    shrunk_ = std::make_unique<Shrunk>(costs, optimize);
    result_.passes = shrunk_->optimized.passes;
  }

  void place(const PlacerEntry& placer) {
    if (placer.name == "expert" && request_.place.expert == nullptr) return;
    if (std::ranges::any_of(result_.attempts, &Attempt::proved))
      return;  // every placement was tried already
    Attempt optimized = attempt({costs_, units_, shrunk_.get()}, placer, request_.place);
    if (!placer.optimizable || shrunk_ == nullptr) return keep(std::move(optimized));
    // Fewer operators to place is no promise of a shorter step: keep the better plan.
    Attempt plain = attempt({costs_, units_}, placer, request_.place);
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
    const auto begin = std::chrono::steady_clock::now();
    std::erase_if(result_.attempts, [](const Attempt& other) { return other.method == "exact"; });
    const Attempt* start = best();
    const ExactResult found = solve_exactly(
        costs_, {.work = static_cast<std::int64_t>(request_.budget * share * kExactWorkPerSecond),
                 .start = start != nullptr ? &*start->placed : nullptr,
                 .cancel = request_.place.cancel});
    if (found.cancelled) stopped_early_ = true;
    Attempt exact;
    exact.method = "exact";
    exact.proved = found.complete && !found.placed.has_value();
    if (found.placed.has_value()) {
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

  const Attempt* best() const {
    const Attempt* best = nullptr;
    for (const Attempt& attempt : result_.attempts)
      if (attempt.placed.has_value() && (best == nullptr || attempt.makespan < best->makespan))
        best = &attempt;
    return best;
  }

  RefineOptions options(double share) const {
    return {.work = static_cast<std::int64_t>(request_.budget * share * kWorkPerSecond),
            .seed = request_.place.seed,
            .threads = request_.threads,
            .deadline = deadline_,
            .cancel = request_.place.cancel};
  }

  // Partitions and cuts differ by their seed, much more than by what local search makes of them: a
  // few more.
  void restart(Attempt& refined) {
    restart({.share = 0.35, .work_per_op = 18}, refined, [&](std::uint64_t seed) {
      PlaceOptions options = request_.place;
      options.seed = seed;
      options.cancel = nullptr;
      PlaceResult result = place_partition(costs_, options);
      auto* placed = std::get_if<PlacedGraph>(&result);
      return placed == nullptr ? std::nullopt : std::optional(std::move(*placed));
    });
    const OpLabels groups = group_labels(costs_.graph());
    restart({.share = 0.15, .work_per_op = 2}, refined,
            [&](std::uint64_t seed) -> std::optional<PlacedGraph> {
              std::optional<DeviceCut> cut = cut_partition(costs_, groups, {.seed = seed});
              if (!cut.has_value()) return std::nullopt;
              if (cut->over == Bytes(0)) return std::move(cut->schedule.placed);
              return repaired(cut->schedule.placed);
            });
  }

  // A cut that hardly runs over is a few moves away from one that fits, and usually much faster
  // than what was made by memory alone.
  std::optional<PlacedGraph> repaired(const PlacedGraph& cut) const {
    constexpr std::int64_t kReplays = 60;
    const auto num_ops = static_cast<std::int64_t>(costs_.graph().num_ops());
    FitSearch search(costs_, units_, {.simulated_ops = kReplays * num_ops});
    return search.repair(cut);
  }

  struct Effort {
    double share;        // of the budget
    double work_per_op;  // what one run costs for each operator and edge, about
  };
  template <class Run>  // from a seed to a plan, or none
  void restart(const Effort& effort, Attempt& refined, const Run& run) {
    const auto size =
        static_cast<double>(1'000 + costs_.graph().num_ops() + costs_.graph().num_edges());
    const auto runs = static_cast<std::uint64_t>(std::clamp(
        request_.budget * effort.share * kWorkPerSecond / (effort.work_per_op * size), 0.0, 32.0));
    std::vector<std::optional<PlacedGraph>> found(runs);
    parallel_for(runs, request_.threads, [&](std::size_t i) {
      if (!must_stop()) found[i] = run(request_.place.seed + 1 + i);
    });
    for (const std::optional<PlacedGraph>& placed : found)
      if (placed.has_value()) offer_placement(problem(), *placed, refined);
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
  }

  Problem problem() const { return {costs_, units_, shrunk_.get()}; }

  const CostModel& costs_;
  const Units& units_;
  const PlanRequest& request_;
  std::unique_ptr<Shrunk> shrunk_;
  PortfolioResult result_;
  std::chrono::steady_clock::time_point deadline_;
  std::atomic<bool> stopped_early_{false};
};

}  // namespace

std::span<const PortfolioEntry> portfolio_methods() { return kMethods; }

PortfolioResult run_portfolio(const CostModel& costs, const Units& units,
                              const PlanRequest& request) {
  check_budget(request.budget);
  check_threads(request.threads);
  check_lp_threshold(request.place.lp_threshold);
  if (request.method == "expert" && request.place.expert == nullptr)
    throw InputError("the method 'expert' needs a placement to follow");
  Portfolio portfolio(costs, units, request);
  const std::string& method = request.method;
  if (method != "auto" && method != "refine" && method != "all" && method != "exact") {
    portfolio.place(find_placer(method));
    return portfolio.take();
  }
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

}  // namespace baechi
