// SPDX-License-Identifier: Apache-2.0
// Every bound against the exact optimum, on every kind of instance that the rules allow.
#include "baechi/bounds/lower_bounds.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdio>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "baechi/base/random.h"
#include "baechi/place/placer.h"
#include "baechi/simulate/execution_simulator.h"
#include "property/effort.h"
#include "unit/brute_force.h"
#include "unit/graphs.h"
#include "unit/regimes.h"

namespace baechi {
namespace {

using testing::effort;
using testing::instance_of;
using testing::RandomDag;
using testing::Regime;

TEST_CASE("bounds: none exceeds the exact optimum on thousands of instances of every kind") {
  std::size_t solved = 0, met = 0;
  for (const Regime& regime : testing::regimes()) {
    CAPTURE(regime.name);
    std::size_t of_regime = 0;
    for (std::uint64_t seed = 0; seed < effort(300); ++seed) {
      CAPTURE(seed);
      const auto [graph, cluster] = instance_of(regime, seed);
      const std::optional<testing::Optimum> best = testing::optimal_makespan(graph, cluster);
      if (!best.has_value()) continue;
      ++of_regime;
      const std::vector<NamedBound> found = lower_bounds(CostModel(graph, cluster));
      REQUIRE(found.size() >= 6);
      for (const NamedBound& bound : found) {
        CAPTURE(bound.name);
        REQUIRE(bound.value.count() <= best->makespan.count());
      }
      REQUIRE(std::ranges::is_sorted(found, std::greater<>(), &NamedBound::value));
      if (found.front().value == best->makespan) ++met;
    }
    CHECK(of_regime > effort(150));
    solved += of_regime;
  }
  CHECK(solved > effort(4000));
  // They are worth something, too: most optima are proved.
  CHECK(met * 10 > solved * 8);
}

struct Tightness {
  std::size_t count = 0, met = 0;
  double sum = 0.0, least = 1.0;

  void add(Time bound, Time optimum) {
    const double share = static_cast<double>(bound.count()) / static_cast<double>(optimum.count());
    ++count;
    if (bound == optimum) ++met;
    sum += share;
    least = std::min(least, share);
  }
  std::string row(const std::string& name) const {
    char text[160];
    std::snprintf(text, sizeof text, "| %s | %zu | %.1f%% | %.1f%% | %.1f%% |", name.c_str(), count,
                  100.0 * static_cast<double>(met) / static_cast<double>(count),
                  100.0 * sum / static_cast<double>(count), 100.0 * least);
    return text;
  }
};

// Prints the table of docs/explanation/bounds.md: baechi_tests -ns -tc="bounds: how tight they are"
TEST_CASE("bounds: how tight they are" * doctest::skip()) {
  std::map<std::string, Tightness> of_bound;
  std::string regimes, bounds;
  for (const Regime& regime : testing::regimes()) {
    Tightness strongest;
    for (std::uint64_t seed = 0; seed < 1000; ++seed) {
      const auto [graph, cluster] = instance_of(regime, seed);
      const std::optional<testing::Optimum> best = testing::optimal_makespan(graph, cluster);
      if (!best.has_value() || best->makespan == Time(0)) continue;
      const std::vector<NamedBound> found = lower_bounds(CostModel(graph, cluster));
      strongest.add(found.front().value, best->makespan);
      for (const NamedBound& bound : found) of_bound[bound.name].add(bound.value, best->makespan);
    }
    if (strongest.count > 0) regimes += strongest.row(regime.name) + "\n";
  }
  for (const auto& [name, tightness] : of_bound) bounds += tightness.row(name) + "\n";
  MESSAGE("\n" << regimes << "\n" << bounds);
  CHECK(of_bound.size() >= 6);
}

// Too large for the oracle; but a bound that is too high is beaten by somebody sooner or later.
TEST_CASE("bounds: no plan of any placer beats them on graphs up to a thousand operators") {
  std::size_t compared = 0;
  for (std::uint64_t seed = 0; seed < effort(400); ++seed) {
    CAPTURE(seed);
    Random random(seed ^ 0x1a79e);
    RandomDag limits;
    limits.min_ops = seed % 40 == 0 ? 900 : 10;
    limits.max_ops = seed % 40 == 0 ? 1000 : 60;
    limits.edge_chance = random.unit() * 4.0 / static_cast<double>(limits.max_ops);
    limits.cpu_chance = random.chance(0.5) ? 0.7 : 0.0;
    limits.group_chance = random.chance(0.3) ? 0.4 : 0.0;
    limits.pin_chance = random.chance(0.2) ? 0.2 : 0.0;
    limits.max_tensor_bytes = random.chance(0.3) ? 300 : 8;
    limits.max_permanent_bytes = 40;
    const OpGraph graph = testing::random_dag(seed, limits);
    const auto ops = static_cast<std::int64_t>(graph.num_ops());
    const Cluster cluster =
        testing::random_cluster(seed, Bytes(random.chance(0.5) ? ops * 20 : ops * 1000));
    const CostModel costs(graph, cluster);
    const std::vector<NamedBound> found = lower_bounds(costs);
    for (const PlacerEntry& placer : all_placers()) {
      if (placer.name == "expert" || placer.name == "exact") continue;
      CAPTURE(std::string(placer.name));
      const PlaceResult result = placer.place(costs, {});
      const auto* placed = std::get_if<PlacedGraph>(&result);
      if (placed == nullptr) continue;
      const Trace trace = simulate(costs, *placed);
      if (find_overflow(trace, cluster).has_value()) continue;
      REQUIRE_FALSE(found.empty());
      REQUIRE(found.front().value.count() <= trace.schedule.makespan.count());
      ++compared;
    }
  }
  CHECK(compared > effort(1500));
}

}  // namespace
}  // namespace baechi
