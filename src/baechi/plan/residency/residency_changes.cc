// SPDX-License-Identifier: Apache-2.0
// What is away before single readers, changed one by one and several at random. Beyond the paper.
#include <algorithm>
#include <cstddef>
#include <utility>

#include "baechi/base/random.h"
#include "baechi/plan/residency/residency_search.h"

namespace baechi {
namespace {

constexpr std::int64_t kLeastReplays = 100;            // fewer find too little
constexpr double kOneByOne = 0.5, kAtRandom = 0.9;     // parts of them: until then, at most
constexpr std::size_t kMostAtOnce = 3;                 // gaps
constexpr double kOtherPlace = 0.3;                    // of changes at random
constexpr double kOtherOrder = 0.1, kAllMemory = 0.2;  // of changes at random
constexpr double kWorse = 0.05;  // part of a step: taken at first, and less and less
constexpr double kOver = 4.0;  // times as much longer as the memory that lacks is of what is there
constexpr int kReplays = 2;    // the second with less memory, if the first takes too much
constexpr double kOfAReplay = 0.3;  // takes a choice that has been replayed
constexpr std::uint64_t kSeed = 0x6a95;

}  // namespace

void ResidencySearch::change_gaps(std::int64_t most) {
  const auto each = static_cast<std::int64_t>(problem_.costs.graph().num_ops());
  if (!best_.has_value() || most < kLeastReplays * each) return;
  const std::int64_t begin = work_.spent;
  const auto until = [&](double part) {
    work_.limit = begin + static_cast<std::int64_t>(part * static_cast<double>(most));
    work_.limit_to_fit = work_.limit;
  };
  until(kOneByOne);
  change_one_by_one();
  until(kAtRandom);
  change_at_random();
  until(1.0);
  change_one_by_one();
}

// Before all readers, with what the best has there.
std::vector<GivenGap> ResidencySearch::gaps_of_best() const {
  const OpGraph& graph = problem_.costs.graph();
  std::vector<GivenGap> gaps;
  for (const TensorId tensor : graph.tensors())
    if (graph.size(tensor) > Bytes(0))
      for (const Edge& edge : graph.consumers(tensor)) gaps.push_back({tensor, edge.to});
  std::ranges::sort(gaps, {}, &GivenGap::where);
  const auto begins = [&](OpId op) { return best_way_.slots[op].start; };
  for (const AwayTensor& away : best_->residency.away) {
    const TensorId tensor((*graph.outputs(away.producer).begin()).index() + away.port);
    for (const Fetch& fetch : away.fetches) {
      const OpId first = *std::ranges::min_element(fetch.readers, {}, begins);
      std::ranges::lower_bound(gaps, std::pair(tensor, first), {}, &GivenGap::where)->away = true;
    }
  }
  return gaps;
}

// Of units, as the best has them.
std::vector<UnitPlace> ResidencySearch::places_of_best() const {
  const auto& on_store = best_->residency.on_store;
  std::vector<UnitPlace> places;
  for (const StoredUnit& unit : units_) {
    const auto there = [&](OpId op) { return std::ranges::binary_search(on_store, op); };
    places.push_back(std::ranges::none_of(unit.members, there)  ? UnitPlace::kStays
                     : std::ranges::all_of(unit.members, there) ? UnitPlace::kOnStore
                                                                : UnitPlace::kStreamed);
  }
  return places;
}

// One of the two others, or the only other.
UnitPlace ResidencySearch::other_place(std::size_t unit, UnitPlace now, bool further) const {
  std::vector<UnitPlace> others{UnitPlace::kStays, UnitPlace::kOnStore};
  if (units_[unit].may_stream) others.push_back(UnitPlace::kStreamed);
  std::erase(others, now);
  return others[further ? others.size() - 1 : 0];
}

void ResidencySearch::change_one_by_one() {
  for (bool better = true; better && !work_.is_over();) {
    better = false;
    std::vector<GivenGap> gaps = gaps_of_best();
    const std::size_t places = 2 * units_.size();
    for (std::size_t i = 0; i <= gaps.size() + places && !work_.is_over(); ++i) {
      Way way = best_way_;
      if (i < places) {
        const std::size_t unit = i / 2;
        if (way.what.places.empty()) way.what.places.assign(units_.size(), UnitPlace::kAny);
        way.what.places[unit] = other_place(unit, places_of_best()[unit], i % 2 == 1);
      } else if (i == places) {
        way.what.overtakes = !way.what.overtakes;
      } else {
        const GivenGap& gap = gaps[i - places - 1];
        std::vector<GivenGap>& given = way.what.given;
        auto at = std::ranges::lower_bound(given, gap.where(), {}, &GivenGap::where);
        if (at == given.end() || at->where() != gap.where()) at = given.insert(at, gap);
        at->away = !gap.away;
      }
      const Rating before = best_->rating();
      if (!follow(way, [&](const Rating& rating) { return rating < before; })) continue;
      better = true;
      gaps = gaps_of_best();
    }
  }
}

// Several at once; at first what is worse is taken, too.
void ResidencySearch::change_at_random() {
  Random random(kSeed);
  Way now = best_way_;
  now.what.given = gaps_of_best();
  now.what.places = places_of_best();
  double step = length_of(best_->rating());
  const std::size_t gaps = now.what.given.size();
  const std::int64_t begin = work_.spent, end = work_.limit;
  while (gaps > 0 && !work_.is_over()) {
    Way way = now;
    for (std::uint64_t more = 1 + random.below(kMostAtOnce); more > 0; --more) {
      bool& away = way.what.given[random.below(gaps)].away;
      away = !away;
    }
    if (!units_.empty() && random.chance(kOtherPlace)) {
      const std::size_t unit = random.below(units_.size());
      UnitPlace& place = way.what.places[unit];
      place = other_place(unit, place, random.chance(0.5));
    }
    if (random.chance(kOtherOrder)) way.what.overtakes = !way.what.overtakes;
    if (random.chance(kAllMemory))
      for (const DeviceId device : way.memory.keys())
        way.memory[device] = problem_.costs.cluster()[device].capacity;
    const double left = static_cast<double>(end - work_.spent) / static_cast<double>(end - begin);
    const double most = step * (1 + kWorse * left);
    if (!follow(way, [&](const Rating& rating) { return length_of(rating) < most; })) continue;
    step = length_of(way.rating);
    now = std::move(way);
  }
}

double ResidencySearch::length_of(const Rating& rating) const {
  const Cluster& cluster = problem_.costs.cluster();
  const auto [lacks, over, step] = rating;
  Bytes least = cluster[DeviceId(0)].capacity;
  for (const DeviceId device : cluster.devices()) least = std::min(least, cluster[device].capacity);
  return static_cast<double>(step.count()) *
         (1 + kOver * static_cast<double>(over.count()) /
                  static_cast<double>(std::max(least, Bytes(1)).count()));
}

// Replays it, from how it was found, unless that has been replayed; whether it is good enough.
bool ResidencySearch::follow(Way& way, const std::function<bool(const Rating&)>& good) {
  const Cluster& cluster = problem_.costs.cluster();
  ResidencyStart start = *start_in({way.what.start, way.what.order});
  start.slots = way.slots;
  for (int round = 0; round < kReplays; ++round) {
    const std::int64_t before = work_.spent;
    const Seen& seen = replay_once(way.what, start, way.memory);
    if (work_.spent == before) {
      work_.spent +=
          static_cast<std::int64_t>(kOfAReplay * static_cast<double>(start.slots.size()));
      return false;
    }
    way.rating = seen.rating;
    if (good(way.rating)) {
      way.slots = std::move(start.slots);
      return true;
    }
    bool fits = true;
    for (const DeviceId device : cluster.devices()) {
      const Bytes excess =
          seen.peaks[device] - std::min(seen.peaks[device], cluster[device].capacity);
      fits = fits && excess == Bytes(0);
      way.memory[device] -= std::min(way.memory[device], excess);
    }
    if (fits) return false;
  }
  return false;
}

}  // namespace baechi
