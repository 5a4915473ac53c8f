// SPDX-License-Identifier: Apache-2.0
#include "baechi/plan/steps/residing_search.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <set>
#include <utility>

#include "baechi/cost/cost_model.h"
#include "baechi/plan/recompute/recompute_search.h"
#include "baechi/plan/recompute/second_runs.h"
#include "baechi/plan/residency/residency_search.h"
#include "baechi/plan/steps/residing_starts.h"

namespace baechi {
namespace {

constexpr std::size_t kRunChoices = 12, kFewRunChoices = 4;  // of second runs, beside none
constexpr double kTriesPerSecond = 1.4e6;  // operators in replays, with their choices
// Parts of the budget: planning for several devices, and the tries. With one device these get both.
constexpr double kForStarts = 0.2, kForTries = 0.8;
constexpr double kLeastToFit = 1.0;  // a budget that there is at least as long as nothing fits
// Parts of the tries, one after the other: a glance at everything; a few tries of the best of it;
// then of the best choice of second runs.
constexpr double kUntilGlanced = 0.25, kUntilFirst = 0.45, kUntilSecond = 0.7;
constexpr int kGlances = 2;              // replays of each start
constexpr std::size_t kManyStarts = 10;  // get one each
constexpr std::size_t kOfThese = 2;  // choices of second runs that get tries from elsewhere, too
constexpr double kNear = 1.1;        // times the best step; without second runs first
// Choices that try all starts. The others try those that were best for one of these.
constexpr std::size_t kWithAllStarts = 3;

constexpr ResidencyTry kGlance{.units = 1.0, .keep = 1.0};
constexpr std::array<ResidencyTry, 3> kFewTries{{
    kGlance,
    {.units = 0.4, .keep = 0.95},
    {.units = 0.0, .keep = 0.9},
}};
constexpr std::array<ResidencyTry, 2> kFewTriesToFit{{
    {.units = 0.0, .keep = 0.9, .lead = 0},
    {.units = 0.0, .keep = 0.0, .lead = 0},
}};
// From where a search begins that has come to an end.
constexpr std::array<ResidencyTry, 6> kSeeds{{
    {.units = 1.0, .keep = 1.0, .first = StayFirst::kLarge},
    {.units = 0.0, .keep = 1.0, .first = StayFirst::kLate},
    {.units = 0.0, .keep = 0.8, .memory = 0.7},
    {.units = 0.0, .keep = 0.9, .memory = 0.5},
    {.units = 0.4, .keep = 1.0},
    {.units = 0.0, .keep = 0.5},
}};

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

// A step with certain second runs, which is searched.
struct Variant {
  std::vector<Recomputation> again;
  std::unique_ptr<Unrolled> step;
  std::unique_ptr<CostModel> costs;
  std::vector<ResidencyStart> starts;
  std::vector<std::size_t> which;  // they are, of all sequences in all groupings
  std::optional<ResidencySearch> search;

  ResidencyProblem problem() const { return {*step, *costs}; }
};

class Planning {
 public:
  Planning(const OpGraph& graph, std::uint32_t micro_batches, const Cluster& cluster,
           const PlanRequest& request)
      : graph_(graph),
        micro_batches_(micro_batches),
        cluster_(cluster),
        request_(request),
        costs_(graph, cluster),
        runs_(graph) {
    request_.residency = AwayChoice::kNone;
    request_.recompute = Recompute::kNone;
    request_.bounds = false;
    request_.suggest = false;
    request_.watch = nullptr;
  }

  // Where nothing fits, the sequences get as many tries again, one after the other.
  std::optional<ResidingVariant> best(Recompute recompute, ResidencyEffort asked) {
    const bool several = cluster_.num_devices() > 2;
    const double budget = request_.budget;
    request_.budget *= kForStarts;
    sequences_ = sequences_of_one(costs_, micro_batches_, request_);
    choices_ = choices_of(recompute, asked == ResidencyEffort::kFew);
    const double tries = kTriesPerSecond * (kForTries + (several ? 0 : kForStarts));
    work_.cancel = request_.place.cancel;
    limit_ = static_cast<std::int64_t>(tries * budget);
    limit_to_fit_ = asked == ResidencyEffort::kFew
                        ? limit_
                        : static_cast<std::int64_t>(tries * std::max(budget, kLeastToFit));
    std::optional<ResidingVariant> best = of_sequences(asked);
    std::vector<SequenceOfOne> each = std::exchange(sequences_, {});
    limit_to_fit_ /= static_cast<std::int64_t>(std::max<std::size_t>(each.size(), 1));
    const auto fits = [&] { return best.has_value() && best->found.fits; };
    const auto try_others = [&] {
      std::optional<ResidingVariant> other = of_sequences(asked);
      if (other.has_value() && (!best.has_value() || other->found.rating() < best->found.rating()))
        best = std::move(other);
    };
    for (std::size_t i = each.size() == 1 ? 1 : 0; i < each.size() && !fits(); ++i) {
      sequences_ = {std::move(each[i])};
      try_others();
    }
    if (!fits() && budget > 0) {  // what no search has changed: a longer one may lead astray
      request_.budget = 0;
      sequences_ = sequences_of_one(costs_, micro_batches_, request_);
      try_others();
    }
    return best;
  }

 private:
  struct Candidate {
    double step = 0;  // longer where it did not fit at a glance
    std::size_t variant = 0, start = 0;
  };

  void spend_until(double part) {
    work_.limit = static_cast<std::int64_t>(part * static_cast<double>(limit_));
    work_.limit_to_fit = static_cast<std::int64_t>(part * static_cast<double>(limit_to_fit_));
  }

  // A few tries without second runs and with each choice of them; then all of what looks best.
  std::optional<ResidingVariant> of_sequences(ResidencyEffort asked) {
    work_.spent = 0;
    variants_.clear();
    candidates_.clear();
    good_.clear();
    spend_until(asked == ResidencyEffort::kMany ? kUntilGlanced : 1.0);
    for (const std::size_t choice : in_halves(choices_.size())) {
      if (!variants_.empty() && work_.is_over()) break;
      try_choice(choices_[choice], asked == ResidencyEffort::kAll);
    }
    spend_until(asked == ResidencyEffort::kMany ? kUntilFirst : 1.0);
    if (asked != ResidencyEffort::kAll) try_candidates();
    std::erase_if(variants_,
                  [](const auto& variant) { return variant->search->best() == nullptr; });
    const auto rating = [](const auto& variant) { return variant->search->best()->rating(); };
    std::ranges::stable_sort(variants_, {}, rating);
    if (asked == ResidencyEffort::kMany) improve();
    std::ranges::stable_sort(variants_, {}, rating);
    std::optional<ResidingVariant> best;
    for (const std::unique_ptr<Variant>& variant : variants_) {
      std::optional<ReplayedResidency> found = std::move(*variant->search).take();
      if (!found.has_value() || (best.has_value() && !found->fits)) continue;
      best =
          ResidingVariant{std::move(variant->again), std::move(variant->step), *std::move(found)};
      if (best->found.fits) break;
    }
    return best;
  }

  void try_candidates() {
    std::ranges::stable_sort(candidates_, {}, &Candidate::step);
    for (const Candidate& candidate : candidates_) {
      ResidencySearch& search = *variants_[candidate.variant]->search;
      const auto try_each = [&](const auto& few) {
        for (const ResidencyTry& what : few)
          if (!work_.is_over()) search.try_as(from_start(candidate.start, what));
      };
      try_each(kFewTries);
      if (search.best() == nullptr || !search.best()->fits) try_each(kFewTriesToFit);
    }
  }

  // The best ones from how they were found, then from elsewhere, then the others.
  void improve() {
    const auto near = [&](const std::unique_ptr<Variant>& variant) {
      return is_near(*variant, *variants_.front());
    };
    const auto first = variants_.begin();
    const auto far = std::find_if_not(first, variants_.end(), near);
    const auto plain =
        std::find_if(first, far, [](const auto& variant) { return variant->again.empty(); });
    if (plain > first + 1 && plain < far) std::rotate(first + 1, plain, plain + 1);
    const std::size_t few = std::min(kOfThese, static_cast<std::size_t>(far - first));
    for (std::size_t i = 0; i < few; ++i) {
      spend_until(i + 1 < few ? kUntilSecond : 1.0);
      improve(*variants_[i]->search, variants_[i]->search->best_try());
    }
    for (const ResidencyTry& seed : kSeeds)
      for (std::size_t i = 0; i < few; ++i)
        improve(*variants_[i]->search, from_start(variants_[i]->search->best_try().start, seed));
    for (std::size_t i = few; i < variants_.size(); ++i)
      improve(*variants_[i]->search, variants_[i]->search->best_try());
  }

  static bool is_near(const Variant& variant, const Variant& best) {
    const auto [lacks, over, step] = variant.search->best()->rating();
    const auto [unused, best_over, best_step] = best.search->best()->rating();
    return over <= best_over &&
           static_cast<double>(step.count()) <= kNear * static_cast<double>(best_step.count());
  }

  static ResidencyTry from_start(std::size_t start, ResidencyTry what) {
    what.start = start;
    return what;
  }

  void improve(ResidencySearch& search, const ResidencyTry& from) const {
    if (!work_.is_over()) search.improve(from);
  }

  void try_choice(const IdVector<OpId, bool>& chosen, bool nothing_stays) {
    const bool all_starts = variants_.size() < (micro_batches_ > 1 ? 1 : kWithAllStarts);
    variants_.push_back(variant_of(chosen, all_starts));
    Variant& variant = *variants_.back();
    const int glances = variant.starts.size() < kManyStarts ? kGlances : 1;
    std::optional<Candidate> best;
    for (std::size_t start = 0; start < variant.starts.size(); ++start) {
      if (nothing_stays) {
        for (const bool first_come : {false, true})
          variant.search->try_as({.start = start, .lead = 0, .first_come = first_come});
        continue;
      }
      if (variant.search->best() != nullptr && work_.is_over()) break;
      const auto [unused, over, step] = variant.search->try_as(from_start(start, kGlance), glances);
      const Candidate found{static_cast<double>(step.count()) * (1 + part_of_memory(over)),
                            variants_.size() - 1, start};
      candidates_.push_back(found);
      if (!best.has_value() || found.step < best->step) best = found;
    }
    if (all_starts && best.has_value()) good_.insert(variant.which[best->start]);
  }

  std::vector<IdVector<OpId, bool>> choices_of(Recompute recompute, bool few) const {
    const IdVector<OpId, bool> none(graph_.num_ops());
    if (recompute == Recompute::kNone || !runs_.any()) return {none};
    const RecomputeSearch search(costs_, runs_, request_, 0);
    if (recompute == Recompute::kAll) return {search.all()};
    std::vector<IdVector<OpId, bool>> choices =
        search.from_few_to_all(few || micro_batches_ > 1 ? kFewRunChoices : kRunChoices);
    choices.insert(choices.begin(), none);
    return choices;
  }

  std::unique_ptr<Variant> variant_of(const IdVector<OpId, bool>& chosen, bool all_starts) {
    auto made = std::make_unique<Variant>();
    Variant& variant = *made;
    std::vector<SequenceOfOne> ones;
    std::vector<std::size_t> numbers;
    for (const SequenceOfOne& sequence : sequences_) {
      SecondRuns::Placed placed = runs_.in(sequence.sequence, chosen);
      if (!ones.empty() && placed.again != variant.again) continue;  // those of the first
      variant.again = std::move(placed.again);
      ones.push_back({sequence.device, std::move(placed.sequence)});
      numbers.push_back(static_cast<std::size_t>(&sequence - sequences_.data()));
      for (const Recomputation& again : variant.again)
        ones.back().device.push_back(sequence.device[again.op]);
    }
    variant.step =
        std::make_unique<Unrolled>(unroll(recomputing(graph_, variant.again), micro_batches_));
    variant.costs = std::make_unique<CostModel>(variant.step->graph, cluster_);
    const std::vector<InGroups> in_groups = groupings();
    const auto add = [&](bool all) {
      for (std::size_t i = 0; i < ones.size(); ++i)
        for (std::size_t g = 0; g < in_groups.size(); ++g) {
          const std::size_t which = numbers[i] * in_groups.size() + g;
          if (!all && !good_.contains(which)) continue;
          variant.starts.push_back(start_in_groups(variant.problem(), ones[i], in_groups[g]));
          variant.which.push_back(which);
        }
    };
    add(all_starts);
    if (variant.starts.empty()) add(true);
    variant.search.emplace(variant.problem(), variant.starts, work_);
    return made;
  }

  Bytes least_memory() const {
    Bytes least = cluster_[DeviceId(0)].capacity;
    for (const DeviceId device : cluster_.devices())
      least = std::min(least, cluster_[device].capacity);
    return least;
  }

  double part_of_memory(Bytes bytes) const {
    return static_cast<double>(bytes.count()) /
           static_cast<double>(std::max(least_memory(), Bytes(1)).count());
  }

  std::vector<InGroups> groupings() const {
    if (micro_batches_ == 1) return {{}};
    const Bytes least = least_memory();
    std::vector<InGroups> all;
    for (const std::uint32_t parts : {1U, 2U, micro_batches_})
      if (micro_batches_ % parts == 0 &&
          (parts == 1 || all.back().micro_batches > micro_batches_ / parts))
        for (const std::int64_t part : {32, 8})
          if (parts < micro_batches_ || part == 8)
            all.push_back({micro_batches_ / parts, Bytes(least.count() / part)});
    return all;
  }

  const OpGraph& graph_;
  const std::uint32_t micro_batches_;
  const Cluster& cluster_;
  PlanRequest request_;
  const CostModel costs_;
  const SecondRuns runs_;
  std::vector<SequenceOfOne> sequences_;
  std::vector<IdVector<OpId, bool>> choices_;  // of second runs; none first
  ReplayWork work_;
  std::int64_t limit_ = 0, limit_to_fit_ = 0;
  std::vector<std::unique_ptr<Variant>> variants_;
  std::vector<Candidate> candidates_;
  std::set<std::size_t> good_;  // starts, as in Variant::which
};

}  // namespace

std::optional<ResidingVariant> best_residing(const OpGraph& graph, std::uint32_t micro_batches,
                                             const Cluster& cluster, const PlanRequest& request,
                                             Recompute recompute, ResidencyEffort effort) {
  return Planning(graph, micro_batches, cluster, request).best(recompute, effort);
}

}  // namespace baechi
