// SPDX-License-Identifier: Apache-2.0
#include "baechi/plan/steps/residing_search.h"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <set>
#include <span>
#include <utility>

#include "baechi/cost/cost_model.h"
#include "baechi/graph/residency.h"
#include "baechi/plan/recompute/second_runs.h"
#include "baechi/plan/recompute/sparing_choices.h"
#include "baechi/plan/residency/residency_orders.h"
#include "baechi/plan/residency/stored_units.h"
#include "baechi/plan/steps/residing_pool.h"
#include "baechi/plan/steps/residing_starts.h"
#include "baechi/plan/steps/starts_in_rounds.h"

namespace baechi {
namespace {

constexpr std::size_t kRunChoices = 12, kFewRunChoices = 4;  // of second runs, beside none
constexpr std::size_t kBetween = 4;        // steps from one to the next, for what the best leads to
constexpr double kTriesPerSecond = 1.8e6;  // operators in replays, with their choices
constexpr double kForStarts = 0.2;         // part of the budget: a plan for several devices
constexpr double kOfAPlan = 110;           // replays of all operators take as long
constexpr double kSimulatedPerSecond = 1e6;    // operators, for stages in rounds
constexpr double kLeastForTries = 0.4;         // part of the budget, whatever plans take
constexpr std::int64_t kLeastTries = 100'000;  // operators in replays, with any budget but none
constexpr double kLeastToFit = 1.0;  // a budget that there is at least as long as nothing fits
// Part of the tries without second runs: as many whether others are tried, too, or not.
constexpr double kForPlain = 0.5;
constexpr double kHopeless = 1.5;  // times a step with second runs: none get no search of theirs
constexpr double kFarStart = 1.5;  // times a step: starts that would be longer with ample memory
// Choices that try all starts. The others try those that were best for one of these.
constexpr std::size_t kWithAllStarts = 3;
constexpr double kToShift = 0.1;       // part of the tries: other shares of several devices
constexpr std::size_t kFewShares = 3;  // get a few tries: the best at a glance
constexpr double kForAll = 0.1;  // part of the tries, beside the others: all that may be is away

// 0, n - 1, then what halves the largest gaps.
std::vector<std::size_t> in_halves(std::size_t n) {
  std::vector<std::size_t> order{0};
  std::vector<bool> taken(n);
  taken[0] = true;
  for (std::size_t step = std::bit_ceil(n); step > 0; step /= 2)
    for (std::size_t i = n - 1; i < n; i -= step)
      if (!taken[i]) {
        taken[i] = true;
        order.push_back(i);
      }
  return order;
}

class Planning {
 public:
  // From a start that is given, or from all that there are.
  Planning(const OpGraph& graph, std::uint32_t micro_batches, const Cluster& cluster,
           const PlanRequest& request, const std::optional<SequenceOfOne>& given)
      : given_(given),
        graph_(graph),
        micro_batches_(micro_batches),
        cluster_(cluster),
        request_(request),
        costs_(graph, cluster),
        runs_(graph) {}

  // Where nothing fits, the sequences get as many tries again, one after the other.
  std::optional<ResidingVariant> best(Recompute recompute, ResidencyEffort asked,
                                      const Plan* known) {
    const Budget budget = request_.budget, for_starts = budget.part(kForStarts);
    PlannedStarts starts = starts_of(for_starts);
    if (micro_batches_ > 1 && cluster_.num_devices() > 2)
      add_new(in_rounds(costs_, micro_batches_,
                        static_cast<std::int64_t>(kSimulatedPerSecond * for_starts.seconds)),
              sequences_);
    for (SequenceOfOne& one : starts.sequences) add_new(std::move(one), sequences_);
    choices_ = choices_of(recompute, asked == ResidencyEffort::kFew);
    if (known != nullptr) begin_with(*known, recompute);
    const double planning = kOfAPlan * static_cast<double>(graph_.num_ops() * micro_batches_);
    const auto tries_of = [&](Budget of) {
      const double all = kTriesPerSecond * of.seconds;
      const double starts_take = starts.is_planned ? kForStarts * all + planning : 0;
      return static_cast<std::int64_t>(std::max(all - starts_take, kLeastForTries * all));
    };
    limit_ = std::max(tries_of(budget), budget.none() ? 0 : kLeastTries);
    limit_to_fit_ =
        asked == ResidencyEffort::kFew ? limit_ : std::max(limit_, tries_of(kLeastToFit));
    std::optional<ResidingVariant> best = of_sequences(asked);
    const auto fits = [&] { return best.has_value() && best->found.fits; };
    const auto try_others = [&](ResidencyEffort effort) {
      std::optional<ResidingVariant> other = of_sequences(effort);
      if (other.has_value() && (!best.has_value() || other->found.rating() < best->found.rating()))
        best = std::move(other);
    };
    // What starts are worth with second runs is not what they are worth without.
    with_all_starts_ = !fits() && asked != ResidencyEffort::kFew;
    if (with_all_starts_ && choices_.size() > 1) try_others(asked);
    const std::vector<SequenceOfOne> each = sequences_;
    limit_to_fit_ /= static_cast<std::int64_t>(std::max<std::size_t>(each.size(), 1));
    for (std::size_t i = each.size() == 1 ? 1 : 0; i < each.size() && !fits(); ++i) {
      sequences_ = {each[i]};
      try_others(asked);
    }
    if (!fits() && !budget.none()) {  // what no search has changed: a longer one may lead astray
      sequences_ = starts_of(0).sequences;
      try_others(asked);
    }
    if (asked == ResidencyEffort::kMany) {  // where accounts mislead, it may be the best
      sequences_ = each;
      with_all_starts_ = false;
      limit_ = limit_to_fit_ = static_cast<std::int64_t>(kForAll * static_cast<double>(limit_));
      try_others(ResidencyEffort::kAll);
    }
    return best;
  }

 private:
  PlannedStarts starts_of(Budget budget) const {
    if (given_.has_value()) return {{*given_}, false};
    return sequences_of_one(costs_, micro_batches_, request_.within(budget));
  }
  // The first choice, which is the one without second runs if there are others, and the others, with
  // tries of their own: what the first comes to does not depend on the others.
  std::optional<ResidingVariant> of_sequences(ResidencyEffort asked) {
    good_.clear();
    glanced_ = 0;
    const bool divided = asked == ResidencyEffort::kMany;
    const std::span choices(choices_);
    ResidingPool plain = pool(divided ? kForPlain : 1), again = pool(divided ? 1 - kForPlain : 1);
    look_at(plain, choices.first(1), asked);
    if (!divided) again.work.spent = plain.work.spent;
    if (choices.size() > 1) look_at(again, choices.subspan(1), asked);
    if (divided) {
      if (plain.fits()) again.leave_out_longer_than(plain.step());
      if (sparing_.has_value())
        again.vary_runs(kBetween, parts_,
                        [&](std::size_t part) { return sparing(part, again.work); });
      again.improve();
      const bool hopeless =
          again.fits() &&
          (!plain.fits() || static_cast<double>(plain.step().count()) >
                                kHopeless * static_cast<double>(again.step().count()));
      if (choices.size() > 1)  // or it would be more than beside others
        plain.limit += std::max<std::int64_t>(again.limit - again.work.spent, 0);
      if (!hopeless) plain.improve();
      again.limit += std::max<std::int64_t>(plain.limit - plain.work.spent, 0);
      again.improve();
      for (ResidingPool* each : {&plain, &again}) each->change_gaps(limit_, limit_to_fit_);
    }
    for (std::unique_ptr<SearchedVariant>& variant : again.variants)
      plain.variants.push_back(std::move(variant));
    plain.sort();
    if (plain.variants.empty()) return std::nullopt;
    SearchedVariant& best = *plain.variants.front();
    return ResidingVariant{std::move(best.again), std::move(best.step),
                           *std::move(*best.search).take()};
  }

  void begin_with(const Plan& known, Recompute recompute) {
    add_new(sequence_of_known(costs_, known), sequences_);
    IdVector<OpId, bool> chosen(graph_.num_ops());
    for (const Recomputation& again : known.recomputed) chosen[again.op] = true;
    if (recompute == Recompute::kAuto &&
        std::ranges::find(choices_, chosen, &SparingChoice::again) == choices_.end())
      choices_.insert(choices_.begin() + 1, {std::move(chosen), std::nullopt});
  }

  ResidingPool pool(double part) const {
    ResidingPool made{
        .work = {},
        .limit = static_cast<std::int64_t>(part * static_cast<double>(limit_)),
        .limit_to_fit = static_cast<std::int64_t>(part * static_cast<double>(limit_to_fit_)),
        .variants = {},
        .candidates = {}};
    made.work.cancel = request_.place.cancel;
    return made;
  }

  // A glance at each choice, then a few tries of what looks best.
  void look_at(ResidingPool& pool, std::span<const SparingChoice> choices, ResidencyEffort asked) {
    pool.spend_until(asked == ResidencyEffort::kMany ? ResidingPool::kUntilGlanced : 1.0);
    for (const std::size_t choice : in_halves(choices.size())) {
      if (!pool.variants.empty() && pool.work.is_over()) break;
      try_choice(pool, choices[choice], asked == ResidencyEffort::kAll);
    }
    const bool first = glanced_ == 1;  // of all choices
    if (first && asked == ResidencyEffort::kMany && cluster_.num_devices() > 2 &&
        !given_.has_value())
      shift_shares(pool);
    pool.spend_until(asked == ResidencyEffort::kMany ? ResidingPool::kUntilFirst : 1.0);
    if (asked != ResidencyEffort::kAll) pool.try_candidates();
    pool.sort();
  }

  void try_choice(ResidingPool& pool, const SparingChoice& chosen, bool nothing_stays) {
    const bool early = glanced_++ < (micro_batches_ > 1 ? 1 : kWithAllStarts);
    const bool all_starts = early || with_all_starts_;
    pool.variants.push_back(variant_of(chosen, all_starts, pool.work));
    SearchedVariant& variant = *pool.variants.back();
    std::optional<ResidingPool::Candidate> best;
    for (std::size_t start = 0; start < variant.starts.size(); ++start) {
      if (nothing_stays) {
        pool.send_all_away(start);
        continue;
      }
      if (variant.search->best() != nullptr && pool.work.is_over()) break;
      const auto ample = static_cast<double>(end_of(variant.starts[start]).count());
      if (best.has_value() && ample > kFarStart * best->step) continue;
      const ResidingPool::Candidate found = pool.glance_at(start);
      if (!best.has_value() || found.step < best->step) best = found;
    }
    if (all_starts && best.has_value()) good_.insert(variant.which[best->start]);
  }

  // From the best shares of the devices on, others, one part after the other from device to device.
  void shift_shares(ResidingPool& pool) {
    SearchedVariant& variant = *pool.variants.front();
    if (variant.search->best() == nullptr) return;
    const std::vector<InGroups> in_groups = groupings(cluster_, micro_batches_);
    const std::size_t grouping = variant.which[variant.search->best_try().start] % in_groups.size();
    IdVector<OpId, bool> chosen(graph_.num_ops());
    for (const Recomputation& again : variant.again) chosen[again.op] = true;
    std::vector<ResidingPool::Candidate> least;  // one after the other
    const auto rate = [&](const DeviceShares& shares) -> std::optional<double> {
      if (pool.work.is_over()) return std::nullopt;
      const std::optional<SequenceOfOne> one = in_parts(costs_, shares);
      if (!one.has_value()) return std::nullopt;
      const auto [again, whole] = with_second_runs(*one, chosen);
      if (again != variant.again) return std::nullopt;
      const std::size_t before = variant.starts.size();
      const ResidingPool::Candidate found = pool.rate(
          0, variant.start_at(start_in_groups(variant.problem(), whole, in_groups[grouping]),
                              grouping));
      if (found.start < before) return found.step;  // one of those that there are
      if (least.empty() || found.step < least.back().step) least.push_back(found);
      return found.step;
    };
    pool.spend_more(kToShift);
    least_shares(cluster_, shares_by_memory(costs_), rate);
    const std::size_t few = std::min(least.size(), kFewShares);
    pool.candidates.insert(pool.candidates.end(), least.end() - static_cast<std::ptrdiff_t>(few),
                           least.end());
  }

  std::pair<std::vector<Recomputation>, SequenceOfOne> with_second_runs(
      const SequenceOfOne& one, const IdVector<OpId, bool>& chosen) const {
    SecondRuns::Placed placed = runs_.in(one.sequence, chosen);
    SequenceOfOne whole{one.device, std::move(placed.sequence), one.in_rounds};
    for (const Recomputation& again : placed.again) whole.device.push_back(one.device[again.op]);
    return {std::move(placed.again), std::move(whole)};
  }

  std::vector<SparingChoice> choices_of(Recompute recompute, bool few) {
    const IdVector<OpId, bool> none(graph_.num_ops());
    if (recompute == Recompute::kNone || !runs_.any()) return {{none, std::nullopt}};
    sparing_.emplace(costs_, runs_);
    if (recompute == Recompute::kAll) return {{sparing_->all(), std::nullopt}};
    const std::size_t count = few || micro_batches_ > 1 ? kFewRunChoices : kRunChoices;
    std::vector<SparingChoice> choices{{none, std::nullopt}};
    parts_ = count * kBetween;
    for (SparingChoice& choice : sparing_->from_few_to_all(count))
      choices.push_back({std::move(choice.again), *choice.part * kBetween});
    return choices;
  }

  // With second runs that spare so much more than others, in all starts that were good.
  std::unique_ptr<SearchedVariant> sparing(std::size_t part, ReplayWork& work) {
    std::optional<IdVector<OpId, bool>> chosen = sparing_->at(part, parts_);
    if (!chosen.has_value()) return nullptr;
    return variant_of({*std::move(chosen), part}, false, work);
  }

  std::unique_ptr<SearchedVariant> variant_of(const SparingChoice& chosen, bool all_starts,
                                              ReplayWork& work) {
    auto made = std::make_unique<SearchedVariant>();
    SearchedVariant& variant = *made;
    variant.part = chosen.part;
    std::vector<SequenceOfOne> ones;
    std::vector<std::size_t> numbers;
    for (const SequenceOfOne& sequence : sequences_) {
      auto [again, whole] = with_second_runs(sequence, chosen.again);
      if (!ones.empty() && again != variant.again) continue;  // those of the first
      variant.again = std::move(again);
      ones.push_back(std::move(whole));
      numbers.push_back(static_cast<std::size_t>(&sequence - sequences_.data()));
    }
    variant.step =
        std::make_unique<Unrolled>(unroll(recomputing(graph_, variant.again), micro_batches_));
    variant.costs = std::make_unique<CostModel>(variant.step->graph, cluster_);
    const std::vector<InGroups> in_groups = groupings(cluster_, micro_batches_);
    const auto add = [&](bool all) {
      for (std::size_t i = 0; i < ones.size(); ++i)
        for (std::size_t g = 0; g < in_groups.size(); ++g) {
          const std::size_t which = numbers[i] * in_groups.size() + g;
          if (!all && !good_.contains(which)) continue;
          if (ones[i].in_rounds && g > 0 &&
              in_groups[g].micro_batches == in_groups[g - 1].micro_batches)
            continue;  // its blocks are its stages
          variant.starts.push_back(start_in_groups(variant.problem(), ones[i], in_groups[g]));
          variant.which.push_back(which);
        }
    };
    add(all_starts);
    if (variant.starts.empty()) add(true);
    variant.search.emplace(variant.problem(), variant.starts, work);
    return made;
  }

  const std::optional<SequenceOfOne> given_;
  const OpGraph& graph_;
  const std::uint32_t micro_batches_;
  const Cluster& cluster_;
  const PlanRequest& request_;
  const CostModel costs_;
  const SecondRuns runs_;
  std::vector<SequenceOfOne> sequences_;
  std::vector<SparingChoice> choices_;  // none first
  std::optional<SparingChoices> sparing_;
  std::size_t parts_ = 0;  // of all that second runs can spare
  std::int64_t limit_ = 0, limit_to_fit_ = 0;
  bool with_all_starts_ = false;
  std::size_t glanced_ = 0;     // choices
  std::set<std::size_t> good_;  // starts, as in SearchedVariant::which
};

}  // namespace

std::optional<ResidingVariant> best_residing(const OpGraph& graph, std::uint32_t micro_batches,
                                             const Cluster& cluster, const PlanRequest& request,
                                             Recompute recompute, ResidencyEffort effort,
                                             const Plan* known,
                                             const std::optional<SequenceOfOne>& given) {
  if (!may_fit(CostModel(graph, cluster), micro_batches)) return std::nullopt;
  return Planning(graph, micro_batches, cluster, request, given).best(recompute, effort, known);
}

}  // namespace baechi
