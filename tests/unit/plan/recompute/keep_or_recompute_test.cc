// SPDX-License-Identifier: Apache-2.0
#include "baechi/plan/recompute/keep_or_recompute.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "baechi/base/random.h"

namespace baechi {
namespace {

// Run i is read by run i + 1, and by `further` others.
std::vector<ForwardRun> drawn_runs(Random& random, std::size_t count, std::size_t further) {
  std::vector<ForwardRun> runs;
  for (std::size_t i = 0; i < count; ++i)
    runs.push_back({.may = true,
                    .needed = true,
                    .time = Time(random.between(1, 30)),
                    .bytes = Bytes(random.between(1, 20))});
  for (std::size_t i = 0; i + 1 < count; ++i) {
    runs[i].readers.push_back(i + 1);
    for (std::size_t j = 0; j < further; ++j)
      runs[i].readers.push_back(i + 1 + random.below(count - i - 1));
  }
  return runs;
}

Time time_of(const std::vector<ForwardRun>& runs, const std::vector<bool>& repeated) {
  Time time;
  for (std::size_t i = 0; i < runs.size(); ++i)
    if (repeated[i]) time += runs[i].time;
  return time;
}

// On a chain: what is kept up to a stretch of second runs, its end included, and the stretch.
Bytes peak_on_chain(const std::vector<ForwardRun>& runs, const std::vector<bool>& repeated) {
  Bytes kept, again, peak;
  for (std::size_t i = 0; i < runs.size(); ++i) {
    (repeated[i] ? again : kept) += runs[i].bytes;
    peak = std::max(peak, kept + again);
    if (!repeated[i]) again = Bytes(0);
  }
  return peak;
}

TEST_CASE("keep or recompute: on a chain no choice takes less time") {
  int within = 0, without = 0;
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    CAPTURE(seed);
    Random random(seed);
    const std::vector<ForwardRun> runs = drawn_runs(random, 9, 0);
    const Bytes limit(random.between(20, 110));
    std::optional<Time> best;
    for (unsigned choice = 0; choice < 1u << runs.size(); ++choice) {
      std::vector<bool> repeated;
      for (std::size_t i = 0; i < runs.size(); ++i) repeated.push_back((choice >> i & 1u) != 0);
      if (peak_on_chain(runs, repeated) > limit) continue;
      best = std::min(best.value_or(time_of(runs, repeated)), time_of(runs, repeated));
    }
    const auto found = KeepOrRecompute(runs).within(limit);
    REQUIRE(found.has_value() == best.has_value());
    ++(found.has_value() ? within : without);
    if (!found.has_value()) continue;
    CHECK(peak_on_chain(runs, *found) <= limit);
    CHECK(time_of(runs, *found) == *best);
  }
  CHECK(within > 20);
  CHECK(without > 5);
}

TEST_CASE("keep or recompute: on a fixed set of runs it takes no more time") {
  Time time;
  int within = 0;
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    Random random(seed);
    const std::vector<ForwardRun> runs = drawn_runs(random, 14, seed % 3);
    const auto found = KeepOrRecompute(runs).within(Bytes(random.between(70, 170)));
    if (!found.has_value()) continue;
    ++within;
    time += time_of(runs, *found);
  }
  CHECK(within == 230);
  CHECK(time.count() <= 4011);  // 4431 without regard to time per byte
}

}  // namespace
}  // namespace baechi
