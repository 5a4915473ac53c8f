// SPDX-License-Identifier: Apache-2.0
#include "baechi/plan/steps/residing_pool.h"

#include <algorithm>
#include <array>
#include <limits>
#include <optional>
#include <span>
#include <utility>

#include "baechi/graph/residency.h"
#include "baechi/plan/steps/residing_starts.h"

namespace baechi {
namespace {

constexpr std::size_t kManyStarts = 10;  // get one each
constexpr std::size_t kOfThese = 2;  // choices of second runs that get tries from elsewhere, too
constexpr double kForGaps = 0.05;    // part of all tries, beside these
constexpr double kNear = 1.1;        // times the best step
constexpr double kFar = 1.5;         // times the best step: a glance that gets no few tries

constexpr ResidencyTry kGlance{.units = 1.0, .keep = 1.0};
constexpr ResidencyTry kStreamedGlance{
    .units = 1.0, .keep = 1.0, .first = StayFirst::kLarge, .streams = 1.0};
constexpr std::array<ResidencyTry, 7> kFewTries{{
    kGlance,
    kStreamedGlance,
    {.units = 0.4, .keep = 0.95},
    {.units = 0.0, .keep = 0.9, .lead = 0, .streams = 1.0},
    {.order = InOrder::kUpdatesLast, .units = 0.6, .keep = 0.95, .lead = 24, .streams = 1.0},
    {.units = 1.0, .keep = 1.0, .streams = kAllStreamed},
    {.order = InOrder::kLastGradientsFirst,
     .units = 1.0,
     .keep = 0.9,
     .lead = 0,
     .first = StayFirst::kLate,
     .streams = 1.0},
}};
constexpr double kOfAStep = 0.01;         // second runs that take less: others bring as little
constexpr std::int64_t kOfAChoice = 3;    // replays that a choice of second runs takes
constexpr std::int64_t kOfATry = 4;       // of a try, at the least
constexpr std::int64_t kLeastOfEach = 5;  // of a candidate
constexpr std::array<ResidencyTry, 4> kFewTriesToFit{{
    {.units = 0.0, .keep = 0.0, .lead = 0, .streams = kAllStreamed},
    {.units = 0.0, .keep = 0.9, .lead = 0},
    {.units = 0.0, .keep = 0.0, .lead = 0},
    {.units = 0.0, .keep = 0.0, .lead = 0, .waits = 0.0},
}};
// From where a search begins that has come to an end.
constexpr std::array<ResidencyTry, 8> kSeeds{{
    {.units = 0.0, .keep = 0.5, .streams = 1.0},
    {.units = 1.0, .keep = 0.0},
    {.units = 1.0, .keep = 1.0, .first = StayFirst::kLarge},
    {.units = 0.0, .keep = 1.0, .first = StayFirst::kLate},
    {.units = 0.0, .keep = 0.8, .memory = 0.7},
    {.units = 0.0, .keep = 0.9, .memory = 0.5},
    {.units = 0.4, .keep = 1.0},
    {.units = 0.0, .keep = 0.5},
}};

ResidencyTry from_start(std::size_t start, ResidencyTry what) {
  what.start = start;
  return what;
}

bool is_near(const SearchedVariant& variant, const SearchedVariant& best) {
  const auto [lacks, over, step] = variant.search->best()->rating();
  const auto [unused, best_over, best_step] = best.search->best()->rating();
  return over <= best_over &&
         static_cast<double>(step.count()) <= kNear * static_cast<double>(best_step.count());
}

// On all devices together, in its best start; second runs come last in the graph that has them.
double work_of_second_runs(const SearchedVariant& variant) {
  const ResidencyStart& start = variant.starts[variant.search->best_try().start];
  const IdVector<OpId, OpId>& original = variant.step->original;
  const OpId last = *std::ranges::max_element(original);
  double work = 0;
  for (const OpId op : variant.costs->graph().ops())
    if (original[op].index() + variant.again.size() > last.index())
      work += static_cast<double>(
          variant.costs->compute_time(op, start.device[op]).value_or(Time(0)).count());
  return work;
}

}  // namespace

std::size_t SearchedVariant::start_at(ResidencyStart start, std::size_t which_it_is) {
  const auto same = std::ranges::find_if(starts, [&](const ResidencyStart& other) {
    return other.device == start.device && other.order == start.order;
  });
  const auto at = static_cast<std::size_t>(same - starts.begin());
  if (at < starts.size()) return at;
  starts.push_back(std::move(start));
  which.push_back(which_it_is);
  return at;
}

void ResidingPool::spend_until(double part) {
  work.limit = static_cast<std::int64_t>(part * static_cast<double>(limit));
  work.limit_to_fit = static_cast<std::int64_t>(part * static_cast<double>(limit_to_fit));
}

void ResidingPool::spend_more(double part) {
  work.limit = work.spent + static_cast<std::int64_t>(part * static_cast<double>(limit));
  work.limit_to_fit = work.limit;
}

void ResidingPool::sort() {
  std::erase_if(variants, [](const auto& variant) { return variant->search->best() == nullptr; });
  std::ranges::stable_sort(variants, {},
                           [](const auto& variant) { return variant->search->best()->rating(); });
}

// No device runs any operator faster than the fastest for it, nor by less than its own factor slower.
void ResidingPool::leave_out_longer_than(Time step) {
  const auto least = [](const SearchedVariant& variant) {
    const CostModel& costs = *variant.costs;
    const DeviceId store = store_of(costs.cluster());
    constexpr double kNever = std::numeric_limits<double>::infinity();
    IdVector<DeviceId, double> factor(costs.cluster().num_devices(), kNever);
    IdVector<DeviceId, double> takes(factor.size());
    double all = 0, at_once = 0;
    for (const OpId op : costs.graph().ops()) {
      if (is_update(*variant.step, op)) continue;
      for (const DeviceId device : takes.keys()) {
        const std::optional<Time> time = costs.compute_time(op, device);
        takes[device] =
            device == store || !time.has_value() ? kNever : static_cast<double>(time->count());
      }
      const double fastest = *std::ranges::min_element(takes);
      if (fastest == 0 || fastest == kNever) continue;
      all += fastest;
      for (const DeviceId device : takes.keys())
        factor[device] = std::min(factor[device], takes[device] / fastest);
    }
    for (const double slower : factor) at_once += 1 / slower;
    return at_once > 0 ? all / at_once : 0;
  };
  std::erase_if(variants, [&](const auto& variant) {
    return least(*variant) > static_cast<double>(step.count());
  });
}

ResidingPool::Candidate ResidingPool::rate(std::size_t at, std::size_t start, int glances) {
  SearchedVariant& variant = *variants[at];
  const bool both = variant.search->may_stream();
  ResidencySearch::Rating rating =
      variant.search->try_as(from_start(start, kGlance), both ? 1 : glances);
  if (both)
    rating = std::min(rating, variant.search->try_as(from_start(start, kStreamedGlance), 1));
  const auto [unused, over, step] = rating;
  const Bytes least = std::max(least_memory(variant.costs->cluster()), Bytes(1));
  const double lacks = static_cast<double>(over.count()) / static_cast<double>(least.count());
  return {static_cast<double>(step.count()) * (1 + lacks), at, start};
}

void ResidingPool::send_all_away(std::size_t start) {
  for (const bool first_come : {false, true})
    for (const bool queues : {true, false})
      variants.back()->search->try_as({.start = start, .lead = 0, .rule = {first_come, queues}});
}

ResidingPool::Candidate ResidingPool::glance_at(std::size_t start) {
  const bool many = variants.back()->starts.size() >= kManyStarts;
  candidates.push_back(rate(variants.size() - 1, start, many ? 1 : kGlances));
  return candidates.back();
}

// Few tries of each where many starts or choices of second runs promise as much.
std::size_t ResidingPool::tries_of(const Candidate& candidate, std::int64_t replayed) const {
  const auto beside = std::ranges::count_if(candidates, [&](const Candidate& other) {
    return other.step <= kFar * candidates.front().step;
  });
  if (beside <= 1) return kFewTries.size();
  const auto ops = static_cast<std::int64_t>(variants[candidate.variant]->costs->graph().num_ops());
  return static_cast<std::size_t>(std::clamp(replayed / (kOfATry * ops * beside), kLeastOfEach,
                                             static_cast<std::int64_t>(kFewTries.size())));
}

void ResidingPool::try_candidates() {
  std::ranges::stable_sort(candidates, {}, &Candidate::step);
  const std::int64_t replayed = std::max<std::int64_t>(work.limit - work.spent, 0);
  std::optional<double> best;
  for (const Candidate& candidate : candidates) {
    if (best.has_value() && candidate.step > kFar * *best) break;
    ResidencySearch& search = *variants[candidate.variant]->search;
    const auto try_each = [&](std::span<const ResidencyTry> few) {
      for (const ResidencyTry& what : few)
        if (!work.is_over() && (what.streams == 0 || search.may_stream()))
          search.try_as(from_start(candidate.start, what));
    };
    try_each(std::span(kFewTries).first(tries_of(candidate, replayed)));
    if (search.best() == nullptr || !search.best()->fits) try_each(kFewTriesToFit);
    if (search.best() == nullptr || !search.best()->fits) continue;
    const auto step = static_cast<double>(search.best()->makespan.count());
    if (!best.has_value() || step < *best) best = step;
  }
}

void ResidingPool::vary_runs(std::size_t widest, std::size_t parts, const MakeSparing& make) {
  if (!fits() || !variants.front()->part.has_value()) return;
  const SearchedVariant* const front = variants.front().get();
  SearchedVariant* best = variants.front().get();
  if (work_of_second_runs(*best) < kOfAStep * static_cast<double>(step().count())) return;
  spend_until(kUntilVaried);
  const auto better_at = [&](std::size_t part) {
    SearchedVariant* other = sparing(part, make);
    if (other == nullptr) return false;
    ResidencyTry what = best->search->best_try();
    const auto start = std::ranges::find(other->which, best->which[what.start]);
    if (start == other->which.end()) return false;
    what.start = static_cast<std::size_t>(start - other->which.begin());
    other->search->try_as(what);
    if (other->search->best() == nullptr) return false;
    if (other->search->best()->rating() >= best->search->best()->rating()) return false;
    best = other;
    return true;
  };
  const auto walk = [&](std::size_t by) {
    while (!work.is_over() && *best->part > by && better_at(*best->part - by)) continue;
    while (!work.is_over() && *best->part + by < parts && better_at(*best->part + by)) continue;
  };
  for (std::size_t by = widest; by > 0 && (by == widest || best != front); by /= 2) walk(by);
  sort();
}

// The variant that there is, or a new one; nothing if it is one of those that spare another part.
SearchedVariant* ResidingPool::sparing(std::size_t part, const MakeSparing& make) {
  for (const auto& each : variants)
    if (each->part == part) return each.get();
  std::unique_ptr<SearchedVariant> made = make(part);
  if (made == nullptr) return nullptr;
  work.spent += kOfAChoice * static_cast<std::int64_t>(made->step->graph.num_ops());
  for (const auto& each : variants)
    if (each->again == made->again) return nullptr;
  variants.push_back(std::move(made));
  return variants.back().get();
}

void ResidingPool::improve() {
  const auto near = [&](const std::unique_ptr<SearchedVariant>& variant) {
    return is_near(*variant, *variants.front());
  };
  const auto improve_from = [&](ResidencySearch& search, const ResidencyTry& from,
                                bool anew = false) {
    if (!work.is_over()) search.improve(from, anew);
  };
  const auto far = std::ranges::find_if_not(variants, near);
  const std::size_t few = std::min(kOfThese, static_cast<std::size_t>(far - variants.begin()));
  for (std::size_t i = 0; i < few; ++i) {
    spend_until(i + 1 < few ? kUntilSecond : 1.0);
    improve_from(*variants[i]->search, variants[i]->search->best_try());
  }
  for (const bool anew : {false, true}) {
    for (std::size_t i = 0; i < few && anew; ++i)
      improve_from(*variants[i]->search, variants[i]->search->best_try(), anew);
    for (const ResidencyTry& seed : kSeeds)
      for (std::size_t i = 0; i < few && (seed.streams == 0 || variants[i]->search->may_stream());
           ++i)
        improve_from(*variants[i]->search, from_start(variants[i]->search->best_try().start, seed),
                     anew);
  }
  for (std::size_t i = 0; i < few; ++i) {
    spend_until(i + 1 < few ? kUntilThird : 1.0);
    variants[i]->search->wander();
  }
  for (std::size_t i = few; i < variants.size(); ++i)
    improve_from(*variants[i]->search, variants[i]->search->best_try());
  sort();
}

void ResidingPool::change_gaps(std::int64_t tries, std::int64_t tries_to_fit) {
  if (variants.empty()) return;
  variants.front()->search->change_gaps(
      static_cast<std::int64_t>(kForGaps * static_cast<double>(fits() ? tries : tries_to_fit)));
}

}  // namespace baechi
