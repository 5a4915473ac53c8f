// SPDX-License-Identifier: Apache-2.0
#include "baechi/plan/portfolio_run.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "baechi/cost/needed_devices.h"
#include "baechi/place/exact/exact.h"
#include "baechi/place/topological_sequences.h"
#include "baechi/plan/attempt/search_log.h"
#include "baechi/plan/fit/any_fit.h"
#include "baechi/plan/request/budget.h"
#include "baechi/plan/request/option_values.h"
#include "baechi/plan/robust.h"

namespace baechi {
namespace {

// Where earliest finish is worth its time: it asks all devices about every operator.
constexpr std::size_t kMostPairs = 4'000'000;
constexpr std::int64_t kLeastPart = 8;    // of partition's work, to try it at all
constexpr double kOfFasterDevices = 0.1;  // of the budget, for each cluster of them

std::int64_t nanoseconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now() -
                                                              begin)
      .count();
}
}  // namespace

PortfolioRun::PortfolioRun(const CostModel& costs, const Units& units, const Given& given,
                           const PlanRequest& request)
    : costs_(costs),
      units_(units),
      given_(given),
      request_(request),
      last_resort_(new_resort()),
      spending_(request, last_resort_),
      spent_(given.spent) {
  if (given.busy != nullptr)
    for (const OpId op : critical_path_first_sequence(costs))
      decisions_.push_back(*given.busy->from_given(given.canonical->to_given(op)));
  if (request.optimize.level == OptimizeLevel::kNone) return;
  if (request.budget.none() && !request.paper && !runs_alone(request.method)) {
    leave_out("the optimizer");
    return;
  }
  OptimizeOptions optimize = request.optimize;
  optimize.cancel = request.place.cancel;
  if (!request.paper) optimize.coplacement.cut.work = most_work_of_cut(request, costs.graph());
  shrunk_ = std::make_unique<Shrunk>(costs, optimize);
  spent_ += work_of_optimizer(costs);
  result_.passes = shrunk_->optimized.passes;
}

void PortfolioRun::place_alone(const PlacerEntry& placer) {
  search_for_none();
  last_resort_.care = last_resort_.care_to_fit = last_resort_.repairs = LastResort::kAny;
  try_placer(placer, request_.place);
  repair();
  if (!placer.baseline && !is_settled()) find_any_plan(result_.attempts.front());
}

void PortfolioRun::place(const PlacerEntry& placer) {
  if (placer.for_unequal && !are_few_and_unequal()) return;
  if (placer.needs_expert && request_.place.expert == nullptr) return;
  if (request_.paper) return try_placer(placer, request_.place);  // which knows no budget
  const std::int64_t work = work_of(placer, costs_);
  const std::int64_t left = most_work_of_methods(request_, costs_.graph()) - charged_;
  const bool is_cheap = !request_.budget.none() && placer.work_of_node == 1;
  const bool is_dear = !is_cheap && work > left;
  if (is_dear && !has_plan()) repair();
  const bool is_short = is_dear && (has_plan() || last_resort_.searched);
  // It tries one number of devices after the other.
  if (is_short && (placer.place != place_partition || left < work / kLeastPart)) {
    left_out_.emplace_back(placer.name);
    return;
  }
  charged_ += is_short ? left : work;
  bool cut_short = false;
  PlaceOptions options = request_.place;
  options.cut_short = &cut_short;
  options.partition_work = std::max(left, work / kLeastPart);
  try_placer(placer, options);
  if (costs_.graph().num_ops() <= kSmallGraph) repair();
  if (cut_short) left_out_.push_back(std::string(placer.name) + " on more devices");
}

void PortfolioRun::try_placer(const PlacerEntry& placer, const PlaceOptions& options) {
  if (placer.needs_expert && request_.place.expert == nullptr) return;
  if (std::ranges::any_of(result_.attempts, &Attempt::proved))
    return;  // every placement was tried already
  Attempt optimized = own_choices(problem(), placer, options);
  if (!optimized.optimized || !optimized.placed.has_value() || request_.paper)
    return keep(std::move(optimized));
  // Fewer operators to place is no promise of a shorter step: keep the better plan.
  Attempt plain = own_choices({.costs = costs_,
                               .units = units_,
                               .last_resort = &last_resort_,
                               .order = request_.place.order,
                               .fits = true,
                               .known = given_.known},
                              placer, options);
  optimized.nanoseconds += plain.nanoseconds;
  if (!plain.placed.has_value() || optimized.makespan <= plain.makespan) {
    note_optimized(optimized);
    return keep(std::move(optimized));
  }
  plain.nanoseconds = optimized.nanoseconds;
  result_.notes.push_back(
      std::string(placer.name) +
      ": the plan of the unoptimised graph was better and replaced the optimised one");
  keep(std::move(plain));
}

void PortfolioRun::place_others() {
  if (has_plan()) return;
  last_resort_.care_to_fit = LastResort::kAny;
  std::erase_if(result_.attempts, [](const Attempt& attempt) { return attempt.gave_up; });
  repaired_ = result_.attempts.size();
  for (const PlacerEntry& placer : all_placers()) {
    if (placer.proves || has_plan() ||
        std::ranges::find(result_.attempts, &placer, &Attempt::placer) != result_.attempts.end())
      continue;
    try_placer(placer, request_.place);
    repair();
  }
  constexpr std::int64_t kLeast = 1'000'000;  // a fifth of a second, however small the budget is
  if (!is_settled() && !request_.budget_to_fit.has_value() && last_resort_.work < kLeast &&
      !result_.attempts.empty())
    find_any_plan(result_.attempts.front(), kLeast);
}

bool PortfolioRun::are_few_and_unequal() const {
  const std::size_t pairs = costs_.graph().num_ops() * costs_.cluster().num_devices();
  return costs_.num_classes() > 1 && pairs <= kMostPairs;
}

void PortfolioRun::place_on_faster(std::span<const PlacerEntry* const> placers,
                                   PlaceWindow place_window) {
  if (!are_few_and_unequal() || request_.place.expert != nullptr) return;
  const PlanRequest shorter = request_.within(request_.budget.part(kOfFasterDevices));
  for (const auto& few : NeededDevices::of_faster_classes(costs_)) {
    const Units units(few->costs());
    if (prove_cannot_fit(few->costs(), units).has_value()) continue;
    PortfolioRun run(few->costs(), units, {few->costs(), units}, shorter);
    run.keep_no_fallbacks();
    for (const PlacerEntry* placer : placers) run.place(*placer);
    run.search(place_window);
    const Attempt* found = run.best();
    if (found == nullptr) continue;
    Attempt whole;
    if (offer_placement(problem(), few->on_all(*found->placed, costs_.cluster().num_devices()),
                        whole) &&
        (!on_faster_.has_value() || whole.makespan < on_faster_->makespan))
      on_faster_ = std::move(whole);
  }
}

void PortfolioRun::search(PlaceWindow place_window) {
  // Not from what a proof has met, which depends on the budget: then a longer search would begin
  // elsewhere, and might end with a longer step.
  const Attempt* start = nullptr;
  for (const Attempt& attempt : result_.attempts)
    if (attempt.placed.has_value() && !by_proof(attempt) &&
        (start == nullptr || attempt.makespan < start->makespan))
      start = &attempt;
  if (start == nullptr) start = best();
  if (on_faster_.has_value() && (start == nullptr || on_faster_->makespan < start->makespan))
    start = &*on_faster_;
  if (start == nullptr) return;
  Budget left = request_.budget;
  left.spend(Budget::of_replays(static_cast<double>(
      std::max<std::int64_t>(spent_ + charged_ - work_of_methods(costs_.graph()), 0))));
  spending_.divide(std::max(left.seconds, request_.budget.seconds / 2));
  const auto begin = std::chrono::steady_clock::now();
  Attempt refined = *start;
  refined.method = "refine";
  refined.placer = nullptr;
  refined.fallbacks.clear();
  const Problem problem = this->problem();
  searched_ = search_on(problem, request_, spending_, refined, {.place_window = place_window});
  if (request_.place.order == ExecutionOrder::kNone) prefer_robust(refined);
  refined.nanoseconds = nanoseconds_since(begin);
  keep(std::move(refined));
}

bool PortfolioRun::prove(double share, bool asked) {
  if (std::ranges::any_of(result_.attempts, &Attempt::proved)) return true;
  if (!is_searchable(costs_)) {
    const Cluster& cluster = costs_.cluster();
    const bool timed = cluster.host_time().has_value() || cluster.sends_block() ||
                       cluster.message_time().has_value();
    if (asked)
      note(std::string(prover().name) +
           (timed ? ": it knows no host time, no sends that block, and no messages that take their "
                    "ends' time"
                  : ": the graph is too large for a search over all plans"));
    return false;
  }
  const Attempt* start = best();
  // Fall-backs have searched for any plan already, as far as the budget goes.
  if (start == nullptr && last_resort_.searched && !asked) return false;
  const auto begin = std::chrono::steady_clock::now();
  // In the numbering of the request where that may make a difference: the bound is about it.
  const CanonicalCosts* const busy = given_.busy;
  const CostModel& costs = busy != nullptr ? busy->costs() : costs_;
  std::optional<PlacedGraph> to_beat;
  if (start != nullptr && is_planned())
    to_beat = busy != nullptr ? busy->from_given(given_.to(*start->placed)) : *start->placed;
  std::erase_if(result_.attempts, by_proof);
  ExactResult found = solve_exactly(costs, {.work = spending_.left().part(share).looks(),
                                            .start = to_beat.has_value() ? &*to_beat : nullptr,
                                            .sequence = decisions_,
                                            .cancel = request_.place.cancel});
  spending_.note_stop(found.cancelled);
  Attempt exact;
  exact.method = std::string(prover().name);
  exact.placer = &prover();
  exact.proved = found.complete && !found.placed.has_value();
  if (found.placed.has_value()) {
    if (busy != nullptr) {
      exact_plan_ = busy->to_given(*found.placed);
      found.placed = given_.from(*exact_plan_);
    }
    if (!offer_placement(problem(), *found.placed, exact))
      exact.reason = "its plan does not fit in the order that the executor has";
    result_.bound = {"exact search", found.bound};
  } else {
    exact.reason = found.complete ? "every placement in every order runs out of memory"
                                  : "no plan that fits was met before the budget was spent";
  }
  exact.nanoseconds = nanoseconds_since(begin);
  keep(std::move(exact));
  if (result_.bound.has_value() && request_.watch) request_.watch({.bound = result_.bound->value});
  if (is_planned() || !found.placed.has_value()) return found.complete;
  if (asked)
    note(std::string(prover().name) +
         ": it searches among planned orders. Its bound holds in every order; its placement need "
         "not be the best in this one");
  return best() != nullptr && best()->makespan <= found.bound;
}

void PortfolioRun::note(std::string text) {
  if (std::ranges::find(result_.notes, text) == result_.notes.end())
    result_.notes.push_back(std::move(text));
}

PortfolioResult PortfolioRun::take() {
  if (given_.canonical != nullptr)
    for (Attempt& attempt : result_.attempts) renumber(attempt);
  if (given_.busy != nullptr) search_as_given();
  if (spending_.stopped_early()) note(kSearchStopped);
  if (!left_out_.empty())
    result_.notes.insert(result_.notes.begin(),
                         "the budget was too short for " + listed(left_out_, " and "));
  return std::move(result_);
}

void PortfolioRun::prefer_robust(Attempt& refined) {
  std::vector<Attempt> found{refined};
  for (const SearchPart& part : searched_)
    for (const PlacedGraph& placed : part.ends) {
      Attempt other = refined;
      other.placed.reset();
      if (offer_placement(problem(), placed, other)) found.push_back(std::move(other));
    }
  refined = std::move(found[most_robust_of_fastest(costs_, found, request_)]);
}

void PortfolioRun::note_optimized(const Attempt& optimized) {
  if (optimized.at_home && optimized.placed.has_value())
    result_.notes.push_back(optimized.method +
                            ": every group stays on the device that the optimizer cut it for");
}

bool PortfolioRun::by_proof(const Attempt& attempt) {
  return attempt.placer != nullptr && attempt.placer->proves;
}

void PortfolioRun::keep(Attempt attempt) {
  if (attempt.placed.has_value()) tell(request_, attempt.makespan, attempt.method);
  result_.attempts.push_back(std::move(attempt));
}

bool PortfolioRun::is_settled() const {
  return std::ranges::any_of(result_.attempts, [](const Attempt& attempt) {
    return attempt.placed.has_value() || attempt.proved;
  });
}

Problem PortfolioRun::problem() {
  return {.costs = costs_,
          .units = units_,
          .shrunk = shrunk_.get(),
          .last_resort = &last_resort_,
          .order = request_.place.order,
          .fits = has_plan(),
          .paper = request_.paper,
          .known = given_.known};
}

}  // namespace baechi
