// SPDX-License-Identifier: Apache-2.0
#include "baechi/plan/steps/residing_search.h"

#include <algorithm>
#include <utility>

#include "baechi/plan/recompute/recompute_search.h"
#include "baechi/plan/recompute/second_runs.h"
#include "baechi/plan/steps/residing_starts.h"

namespace baechi {
namespace {

constexpr std::size_t kChoices = 12, kFewChoices = 4;  // of second runs, beside none
constexpr std::size_t kOfThese = 2;                    // get all tries
constexpr std::size_t kAnyStart = static_cast<std::size_t>(-1);
constexpr std::size_t kLarge = 10'000;  // operators: one choice gets all tries

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

  // Where nothing fits, one sequence after the other gets all tries.
  std::optional<ResidingVariant> best(Recompute recompute, ResidencyEffort asked) {
    sequences_ = sequences_of_one(costs_, micro_batches_, request_);
    std::optional<ResidingVariant> best = of_sequences(recompute, asked);
    std::vector<SequenceOfOne> each = std::exchange(sequences_, {});
    for (std::size_t i = each.size() == 1 ? 1 : 0; i < each.size() && !fits(best); ++i) {
      sequences_ = {std::move(each[i])};
      std::optional<ResidingVariant> other = of_sequences(recompute, asked);
      if (other.has_value() && (!best.has_value() || other->found->better_than(*best->found)))
        best = std::move(other);
    }
    return best;
  }

 private:
  static bool fits(const std::optional<ResidingVariant>& variant) {
    return variant.has_value() && variant->found->fits;
  }

  // A few tries without second runs and with each choice of them; then all of what looks best.
  std::optional<ResidingVariant> of_sequences(Recompute recompute, ResidencyEffort asked) {
    const std::vector<IdVector<OpId, bool>> choices =
        choices_of(recompute, asked == ResidencyEffort::kFew);
    if (choices.size() == 1) return found_for(choices.front(), asked);
    const ResidencyEffort first = asked == ResidencyEffort::kMany ? ResidencyEffort::kFew : asked;
    std::optional<ResidingVariant> once = found_for(choices.front(), first);
    std::vector<ResidingVariant> tried;  // the best first
    const auto offer = [&](ResidingVariant variant) {
      const auto at = std::ranges::find_if(tried, [&](const ResidingVariant& other) {
        return variant.found->better_than(*other.found);
      });
      tried.insert(at, std::move(variant));
    };
    for (std::size_t i = 1; i < choices.size(); ++i) {
      std::optional<ResidingVariant> variant = found_for(choices[i], first, once);
      if (variant.has_value()) offer(*std::move(variant));
      if (tried.size() > kOfThese) tried.pop_back();
    }
    if (once.has_value()) offer(*std::move(once));
    std::optional<ResidingVariant> best;
    for (ResidingVariant& variant : tried) {
      if (!best.has_value() || !(is_large() || is_far(variant, *best))) improve(variant, asked);
      if (!best.has_value() || variant.found->better_than(*best->found)) best = std::move(variant);
    }
    return best;
  }

  // As `like`, with several micro-batches: their order is then that one's.
  std::optional<ResidingVariant> found_for(const IdVector<OpId, bool>& chosen,
                                           ResidencyEffort effort,
                                           const std::optional<ResidingVariant>& like = {}) {
    const bool alike = micro_batches_ > 1 && like.has_value();
    ResidingVariant variant = variant_of(chosen, alike ? like->which.front() : kAnyStart);
    variant.found = find_residency(variant.problem(), variant.starts, effort, cancel());
    if (!variant.found.has_value()) return std::nullopt;
    variant.starts = {std::move(variant.starts[variant.found->start])};
    variant.which = {variant.which[variant.found->start]};
    variant.found->start = 0;
    return variant;
  }

  void improve(ResidingVariant& variant, ResidencyEffort asked) const {
    if (asked != ResidencyEffort::kMany) return;
    auto found = find_residency(variant.problem(), variant.starts, asked, cancel());
    if (found.has_value() && found->better_than(*variant.found)) variant.found = std::move(found);
  }

  bool is_large() const { return graph_.num_ops() * micro_batches_ > kLarge; }

  static bool is_far(const ResidingVariant& variant, const ResidingVariant& best) {
    return best.found->fits && variant.found->fits &&
           variant.found->makespan.count() / 3 > best.found->makespan.count() / 2;
  }

  const CancelFlag* cancel() const { return request_.place.cancel; }

  std::vector<IdVector<OpId, bool>> choices_of(Recompute recompute, bool few) const {
    const IdVector<OpId, bool> none(graph_.num_ops());
    if (recompute == Recompute::kNone || !runs_.any()) return {none};
    const RecomputeSearch search(costs_, runs_, request_, 0);
    if (recompute == Recompute::kAll) return {search.all()};
    std::vector<IdVector<OpId, bool>> choices =
        search.from_few_to_all(few || micro_batches_ > 1 ? kFewChoices : kChoices);
    choices.insert(choices.begin(), none);
    return choices;
  }

  ResidingVariant variant_of(const IdVector<OpId, bool>& chosen, std::size_t only) const {
    ResidingVariant variant;
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
    if (std::ranges::count(numbers, only / in_groups.size()) == 0) only = kAnyStart;
    for (std::size_t i = 0; i < ones.size(); ++i)
      for (std::size_t g = 0; g < in_groups.size(); ++g) {
        const std::size_t which = numbers[i] * in_groups.size() + g;
        if (only != kAnyStart && only != which) continue;
        variant.starts.push_back(start_in_groups(variant.problem(), ones[i], in_groups[g]));
        variant.which.push_back(which);
      }
    return variant;
  }

  std::vector<InGroups> groupings() const {
    if (micro_batches_ == 1) return {{}};
    Bytes least = cluster_[DeviceId(0)].capacity;
    for (const DeviceId device : cluster_.devices())
      least = std::min(least, cluster_[device].capacity);
    std::vector<InGroups> all;
    for (const std::uint32_t parts : {1U, 2U, micro_batches_})
      if (micro_batches_ % parts == 0 && (parts < micro_batches_ || all.size() < 2 * parts))
        for (const std::int64_t part : {32, 8})
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
};

}  // namespace

std::optional<ResidingVariant> best_residing(const OpGraph& graph, std::uint32_t micro_batches,
                                             const Cluster& cluster, const PlanRequest& request,
                                             Recompute recompute, ResidencyEffort effort) {
  return Planning(graph, micro_batches, cluster, request).best(recompute, effort);
}

}  // namespace baechi
