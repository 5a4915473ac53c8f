// SPDX-License-Identifier: Apache-2.0
#include "baechi/plan/search/refine.h"

#include <doctest/doctest.h>

#include <algorithm>

#include "baechi/place/placer.h"
#include "baechi/simulate/execution_simulator.h"
#include "baechi/verify/check_schedule.h"
#include "unit/brute_force.h"
#include "unit/graphs.h"
#include "unit/simulate/small_clusters.h"

namespace baechi {
namespace {

using testing::random_cluster;
using testing::random_dag;

std::optional<PlacedGraph> start_for(const CostModel& costs, std::uint64_t seed) {
  PlaceOptions options;
  options.seed = seed;
  PlaceResult result = place_random(costs, options);
  if (auto* placed = std::get_if<PlacedGraph>(&result))
    if (!find_overflow(simulate(costs, *placed), costs.cluster())) return std::move(*placed);
  return std::nullopt;
}

TEST_CASE("refine: never worse than its start, always fits, and keeps every rule") {
  int improved = 0, tried = 0;
  for (std::uint64_t seed = 0; seed < 150; ++seed) {
    CAPTURE(seed);
    const OpGraph graph = random_dag(seed, {.min_ops = 5,
                                            .max_ops = 30,
                                            .group_chance = 0.2,
                                            .backward_chance = 0.3,
                                            .pin_chance = 0.05,
                                            .cpu_chance = 0.7});
    const Cluster cluster = random_cluster(seed, Bytes(200));
    const CostModel costs(graph, cluster);
    const std::optional<PlacedGraph> start = start_for(costs, seed);
    if (!start.has_value()) continue;
    const Units units(costs);
    const Refined refined = refine(costs, units, *start, {.work = 20'000, .seed = seed});
    const Trace trace = simulate(costs, refined.placed);
    const Time before = simulate(costs, *start).schedule.makespan;
    CHECK(trace.schedule.makespan == refined.makespan);
    CHECK(refined.makespan <= before);
    CHECK(check_schedule(graph, cluster, trace.schedule) == std::vector<std::string>{});
    improved += refined.makespan < before ? 1 : 0;
    ++tried;
  }
  CHECK(tried > 50);
  CHECK(improved * 3 > tried);
}

TEST_CASE("refine: finds the optimum of most tiny instances from a random start") {
  int optimal = 0, tried = 0;
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    CAPTURE(seed);
    const OpGraph graph = random_dag(seed, {.min_ops = 3, .max_ops = 6});
    const Cluster cluster = testing::equal_devices(2, Bytes(1'000), Time(4));
    const CostModel costs(graph, cluster);
    const auto best = testing::optimal_makespan(graph, cluster);
    const std::optional<PlacedGraph> start = start_for(costs, seed);
    if (!best.has_value() || !start.has_value()) continue;
    const Refined refined = refine(costs, Units(costs), *start, {.work = 50'000, .seed = seed});
    CHECK(refined.makespan >= best->makespan);
    optimal += refined.makespan == best->makespan ? 1 : 0;
    ++tried;
  }
  CHECK(tried > 50);
  CHECK(optimal * 10 >= tried * 9);
}

// With no more memory than the start takes at its peak, most of what would be faster does not fit.
TEST_CASE("refine: turns down what is faster and does not fit") {
  int improved = 0, held_back = 0;
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    CAPTURE(seed);
    const OpGraph graph = random_dag(seed, {.min_ops = 12, .max_ops = 30});
    UniformCluster devices{.count = 3, .capacity = Bytes(100'000), .latency = Time(2)};
    const Cluster ample(uniform_cluster(devices));
    const CostModel costs(graph, ample);
    const std::optional<PlacedGraph> start = start_for(costs, seed);
    REQUIRE(start.has_value());
    const Trace before = simulate(costs, *start);
    devices.capacity = Bytes(0);
    for (const DeviceTrace& device : before.devices)
      devices.capacity = std::max(devices.capacity, device.peak);

    const Cluster tight(uniform_cluster(devices));
    const CostModel tight_costs(graph, tight);
    const RefineOptions options{.work = 20'000, .seed = seed};
    const Refined refined = refine(tight_costs, Units(tight_costs), *start, options);
    const Trace after = simulate(tight_costs, refined.placed);
    CHECK(check_schedule(graph, tight, after.schedule) == std::vector<std::string>{});
    CHECK_FALSE(find_overflow(after, tight).has_value());
    CHECK(after.schedule.makespan == refined.makespan);
    improved += refined.makespan < before.schedule.makespan ? 1 : 0;
    held_back += refine(costs, Units(costs), *start, options).makespan < refined.makespan ? 1 : 0;
  }
  CHECK(improved > 10);
  CHECK(held_back > 10);
}

TEST_SUITE("threads") {
  TEST_CASE("refine: the number of threads changes nothing") {
    const OpGraph graph = random_dag(7, {.min_ops = 60, .max_ops = 60, .edge_chance = 0.05});
    const Cluster cluster = testing::equal_devices(3, Bytes(10'000), Time(3));
    const CostModel costs(graph, cluster);
    const Units units(costs);
    const PlacedGraph start = *start_for(costs, 1);
    const Refined one = refine(costs, units, start, {.work = 200'000, .threads = 1});
    for (const unsigned threads : {2U, 3U, 8U}) {
      const Refined many = refine(costs, units, start, {.work = 200'000, .threads = threads});
      CHECK(many.placed.device == one.placed.device);
      CHECK(many.placed.order == one.placed.order);
      CHECK(many.evaluations == one.evaluations);
    }
  }

  TEST_CASE("refine: a request to stop returns the best so far") {
    const OpGraph graph = random_dag(7, {.min_ops = 60, .max_ops = 60, .edge_chance = 0.05});
    const Cluster cluster = testing::equal_devices(3, Bytes(10'000), Time(3));
    const CostModel costs(graph, cluster);
    CancelFlag cancel;
    cancel.request();
    const PlacedGraph start = *start_for(costs, 1);
    const Refined refined =
        refine(costs, Units(costs), start, {.work = 1'000'000'000, .cancel = &cancel});
    CHECK(refined.stopped_early);
    CHECK(refined.makespan == simulate(costs, start).schedule.makespan);
  }
}

}  // namespace
}  // namespace baechi
