// SPDX-License-Identifier: Apache-2.0
#include "baechi/plan/steps/replica_race.h"

#include <algorithm>
#include <variant>

#include "baechi/base/cancel.h"
#include "baechi/base/short_text.h"
#include "baechi/bounds/least_step.h"
#include "baechi/graph/recomputation.h"
#include "baechi/graph/recosted.h"
#include "baechi/graph/replicas.h"
#include "baechi/plan/request/budget.h"

namespace baechi {
namespace {

constexpr int kPlansOfOne = 3;  // each for devices with less memory
// Parts of what an entrant has: for the plan of one of its replicas, more of it where steps are so
// large that few placements of all can be tried; and for both.
constexpr double kOfPlan = 0.3, kOfLargePlan = 0.7, kOfBoth = 0.9;
constexpr double kFewTried = 200;
// Operators that are simulated, about, for each of a step: at least by all methods, by the first
// plan of one of them, and for a plan that is worth it; and to the end, of the step that is chosen.
constexpr double kOfAllMethods = 240, kOfFirstPlan = 30, kOfGoodPlan = 10, kOfChosen = 20;

// Of the first round are all, of the others those at most so many percent behind; each round has a
// part of the budget, which those who are in it share. One replica is planned with all of another
// budget, unless what those in front find with their part shows that it is longer.
constexpr double kFirstRound = 0.1, kBeforeOne = 0.2;
struct RaceRound {
  double part;
  std::int64_t behind;
};
constexpr RaceRound kFurtherRounds[] = {{0.1, 12}, {0.1, 5}};
constexpr std::int64_t kHopelessReplicas = 25;  // percent
constexpr double kTimesAsMuch = 2;              // as before; less would find the same

}  // namespace

std::string in_replicas(std::uint32_t replicas) {
  return std::to_string(replicas) + (replicas == 1 ? " replica" : " replicas");
}

Time ReplicaRace::MadeOf::of_one() const { return std::get<Plan>(plan.result).makespan(); }

ReplicaRace::ReplicaRace(const OpGraph& graph, std::uint32_t micro_batches, const Cluster& cluster,
                         const StepRequest& request, const PlanWithoutReplicas& plan)
    : graph_(graph),
      micro_batches_(micro_batches),
      cluster_(cluster),
      request_(request),
      plan_(plan),
      left_(request.search.budget) {
  request_.replicas.reset();
  left_.spend(Budget::of_replays(kOfChosen * num_ops(1)));
}

void ReplicaRace::enter(std::uint32_t count) {
  counts_.push_back(count);
  if (count == 1) return enter(Entrant{});
  for (ReplicaDevices& sets : replica_sets(cluster_, count))
    enter(Entrant{.count = count, .sets = std::move(sets)});
}

void ReplicaRace::enter(Entrant entrant) {
  const bool several = entrant.count > 1;
  const Cluster first =
      several ? cluster_of_one(cluster_, {entrant.sets.front()}, Bytes(0)) : cluster_;
  const CostModel costs(graph_, first);
  entrant.least = least_step(costs, micro_batches_ / entrant.count);
  entrant.guess = entrant.least.value_or(Time());
  if (several) entrant.guess += time_of_rings(entrant.sets);
  entrants_.push_back(std::move(entrant));
}

// About: of gradients that are spread evenly.
Time ReplicaRace::time_of_rings(const ReplicaDevices& sets) const {
  Bytes bytes;
  for (const ReducedTensor& tensor : reduced_tensors(graph_)) bytes += size_of(graph_, tensor);
  const auto each = static_cast<std::int64_t>(sets.front().size());
  const auto count = static_cast<std::int64_t>(sets.size());
  return cluster_.link(sets[0].front(), sets[1].front())
      .transfer_time(Bytes(bytes.count() / each / count * 2 * (count - 1)));
}

double ReplicaRace::num_ops(std::uint32_t count) const {
  return static_cast<double>(graph_.num_ops()) * micro_batches_ / count;
}

const ReplicaRace::Entrant* ReplicaRace::in_front() const {
  const auto best = std::ranges::min_element(entrants_, {}, &Entrant::rank);
  return best == entrants_.end() || !best->step.has_value() ? nullptr : &*best;
}

bool ReplicaRace::is_near(const Entrant& entrant, std::int64_t percent) const {
  if (!entrant.step.has_value()) return false;
  const auto best = static_cast<double>(in_front()->step->count());
  return static_cast<double>(entrant.step->count()) <=
         best / 100 * static_cast<double>(100 + percent);
}

bool ReplicaRace::may_win(const Entrant& entrant) const {
  const Entrant* best = in_front();
  return best == nullptr || (entrant.least.has_value() && *entrant.least < *best->step);
}

void ReplicaRace::run() {
  std::ranges::stable_sort(entrants_, {}, &Entrant::guess);
  if (entrants_.size() == 1 && entrants_.front().count == 1) return;
  try {
    play(kFirstRound, std::nullopt);
    for (const RaceRound& round : kFurtherRounds) play(round.part, round.behind);
    for (Entrant& entrant : entrants_) {
      if (entrant.count > 1) continue;
      if (in_front() != &entrant && may_win(entrant)) play(kBeforeOne, 0);
      if (may_win(entrant)) plan_as_without(entrant);
    }
    play(left_.seconds / request_.search.budget.seconds, 0);
  } catch (const Cancelled&) {  // anytime: what was found before stays
    if (in_front() == nullptr) throw;
    stopped_ = true;
  }
}

void ReplicaRace::play(double part, std::optional<std::int64_t> behind) {
  std::vector<Entrant*> all;
  for (Entrant& entrant : entrants_)
    if (!behind.has_value() || (is_near(entrant, *behind) && may_win(entrant)))
      all.push_back(&entrant);
  if (behind.value_or(0) > 0 && all.size() < 2) return;
  const Budget each = request_.search.budget.part(part).seconds / static_cast<double>(all.size());
  for (Entrant* entrant : all)
    if (may_win(*entrant) && each.seconds >= kTimesAsMuch * entrant->had.seconds)
      try_entrant(*entrant, each);
}

void ReplicaRace::plan_as_without(Entrant& entrant) {
  left_.spend(request_.search.budget);
  entrant.had = request_.search.budget;
  StepPlan plan = plan_(recosted(graph_, {}), micro_batches_, cluster_, request_);
  const auto* found = std::get_if<Plan>(&plan.result);
  if (found == nullptr || (entrant.step.has_value() && found->makespan() > *entrant.step)) return;
  entrant.step = found->makespan();
  OpGraph one = recomputing(graph_, found->recomputed);
  entrant.made = std::make_unique<MadeOf>(MadeOf{std::move(one), std::move(plan)});
}

void ReplicaRace::try_entrant(Entrant& entrant, Budget part) {
  throw_if_cancelled(request_.search.place.cancel);
  Budget left = part;
  double of_plan = 1;
  if (entrant.count > 1)
    of_plan = part.part(kOfBoth - kOfPlan).seconds * Budget::kReplaysPerSecond <
                      kFewTried * OnAllSets::kWorkOfTried * num_ops(1)
                  ? kOfLargePlan
                  : kOfPlan;
  entrant.had = std::max(
      part.seconds, Budget::of_replays(kOfGoodPlan * num_ops(entrant.count)).seconds / of_plan);
  for (int i = 0; i < kPlansOfOne; ++i, left = left.part(1 - kOfBoth)) {
    std::unique_ptr<MadeOf> made = plan_one(entrant, left.part(of_plan));
    if (made == nullptr ||
        put_on_all_sets(entrant, std::move(made),
                        left.part(kOfBoth - of_plan).seconds * Budget::kReplaysPerSecond))
      return;
  }
}

std::unique_ptr<ReplicaRace::MadeOf> ReplicaRace::plan_one(Entrant& entrant, Budget budget) {
  const double ops = num_ops(entrant.count);
  StepRequest step = request_;
  PlanRequest& request = step.search;
  request = request.within(std::max(budget.seconds, Budget::of_replays(kOfGoodPlan * ops).seconds));
  // Where all methods would exceed the budget, that which is best for large steps.
  if (request_.search.method == "auto" && micro_batches_ > entrant.count &&
      kOfAllMethods * ops > request.budget.seconds * Budget::kReplaysPerSecond)
    request.method = "pipeline";
  const Cluster devices =
      entrant.count > 1 ? cluster_of_one(cluster_, entrant.sets, entrant.less) : cluster_;
  for (const std::string& method : {request.method, request_.search.method}) {
    request.method = method;
    left_.spend(std::max(request.budget.seconds, Budget::of_replays(kOfFirstPlan * ops).seconds));
    StepPlan plan = plan_(recosted(graph_, {}), micro_batches_ / entrant.count, devices, step);
    if (const auto* found = std::get_if<Plan>(&plan.result)) {
      OpGraph one = recomputing(graph_, found->recomputed);
      return std::make_unique<MadeOf>(MadeOf{std::move(one), std::move(plan)});
    }
    if (entrant.less == Bytes(0)) entrant.reason = std::get<Unplaceable>(plan.result).reason;
    if (method == request_.search.method || !may_win(entrant)) break;
  }
  return nullptr;
}

// False if one of them has to be planned again, with less memory.
bool ReplicaRace::put_on_all_sets(Entrant& entrant, std::unique_ptr<MadeOf> made, double work) {
  const Entrant* best = in_front();
  Time step = made->of_one();
  if (entrant.count > 1) {
    const std::optional<Time> known = best == nullptr ? std::nullopt : best->step;
    std::optional<Time> hopeless;
    if (known.has_value()) hopeless = *known + Time(known->count() / 100 * kHopelessReplicas);
    entrant.alone = step;
    if (hopeless.has_value() && step > *hopeless) return true;
    made->all.emplace(OneReplica{made->one, made->plan.step, std::get<Plan>(made->plan.result)},
                      cluster_, entrant.sets);
    OnAllSets& all = *made->all;
    left_.spend(Budget::of_replays(all.search(work, hopeless, request_.search.place.cancel)));
    if (all.over() > Bytes(0)) {
      entrant.less += all.over();
      entrant.reason = "gradients and chunks of the all-reduce lack " + short_text(all.over());
      return false;
    }
    step = all.makespan();
  }
  if (entrant.step.has_value() && *entrant.step <= step) return true;
  if (request_.search.watch && (best == nullptr || step < *best->step))
    request_.search.watch({.step = step, .method = std::get<Plan>(made->plan.result).method});
  entrant.made = std::move(made);
  entrant.step = step;
  return true;
}

std::optional<StepPlan> ReplicaRace::finished(Entrant& entrant) {
  if (entrant.count == 1) return std::move(entrant.made->plan);
  std::optional<MadeOfReplicas> made = entrant.made->all->made();
  if (!made.has_value()) {
    entrant.step.reset();
    entrant.reason = "what fits does so in no order that a file can tell";
    return std::nullopt;
  }
  entrant.step = made->plan.makespan();
  return StepPlan{recosted(graph_, {}), std::move(made->step), std::move(made->plan)};
}

StepPlan ReplicaRace::take() {
  std::optional<StepPlan> best;
  const auto step = [&] { return std::get<Plan>(best->result).makespan(); };
  std::vector<Entrant*> ranked;
  for (Entrant& entrant : entrants_) ranked.push_back(&entrant);
  std::ranges::stable_sort(ranked, {}, [](const Entrant* entrant) { return entrant->rank(); });
  for (Entrant* entrant : ranked) {
    if (!entrant->step.has_value() || (best.has_value() && step() <= *entrant->step)) break;
    std::optional<StepPlan> plan = finished(*entrant);
    if (plan.has_value() && (!best.has_value() || *entrant->step < step())) best = std::move(plan);
  }
  if (best.has_value()) return *std::move(best);
  for (Entrant& entrant : entrants_)
    if (entrant.count == 1) return plan_(recosted(graph_, {}), micro_batches_, cluster_, request_);
  StepPlan none{recosted(graph_, {}), unroll(graph_, micro_batches_), Unplaceable{}};
  std::get<Unplaceable>(none.result).reason = told().front();
  return none;
}

std::vector<std::string> ReplicaRace::told() const {
  std::vector<std::string> told;
  for (const std::uint32_t count : counts_) {
    const Entrant* best = nullptr;
    for (const Entrant& entrant : entrants_)
      if (entrant.count == count && (best == nullptr || entrant.rank() < best->rank()))
        best = &entrant;
    std::string text = in_replicas(count);
    if (best != nullptr && best->step.has_value())
      text += (count == 1 ? " takes " : " take ") + short_text(*best->step);
    else if (best != nullptr && best->reason.empty() && best->alone.has_value())
      text += " take " + short_text(*best->alone) + " without their all-reduce";
    else if (best != nullptr && best->reason.empty() && best->least.has_value())
      text += (count == 1 ? " takes" : " take") + (" at least " + short_text(*best->least));
    else
      text +=
          (count == 1 ? " does not fit: " : " do not fit: ") +
          (best == nullptr || best->reason.empty() ? "there are no such devices" : best->reason);
    told.push_back(std::move(text));
  }
  if (stopped_) told.emplace_back("you stopped before all numbers of replicas were planned");
  return told;
}

}  // namespace baechi
