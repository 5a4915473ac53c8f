// SPDX-License-Identifier: Apache-2.0
#include "baechi/plan/search/restarts.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <optional>

#include "baechi/simulate/execution_simulator.h"
#include "unit/graphs.h"
#include "unit/simulate/small_clusters.h"

namespace baechi {
namespace {

TEST_CASE("restarts: none is made that takes many times the work, however many devices there are") {
  const OpGraph graph =
      testing::random_dag(1, {.min_ops = 200, .max_ops = 200, .edge_chance = 0.015});
  const PlaceOptions place;
  const auto restarts = [&](std::size_t devices, std::int64_t work) {
    const Cluster cluster =
        testing::equal_devices(devices, Bytes(1'000'000'000), Time(5), Bandwidth(1'000'000'000));
    const CostModel costs(graph, cluster);
    const RestartOptions options{.work = work, .place = place, .must_stop = [] { return false; }};
    const Restarts partitions = further_partitions(costs, options);
    const Restarts cuts = further_cuts(costs, Units(costs), options);
    CHECK(partitions.work <= work * 3 / 2);
    CHECK(cuts.work <= work * 3 / 2);
    return std::pair(partitions.plans.size(), cuts.plans.size());
  };
  CHECK(restarts(8, 100'000).first == 1);
  CHECK(restarts(8, 100'000).second > 4);
  CHECK(restarts(64, 90'000) == std::pair<std::size_t, std::size_t>(0, 0));
  CHECK(restarts(64, 1'000'000).first > 0);
  CHECK(restarts(64, 1'000'000).second > 0);
  CHECK(restarts(1, 1'000'000).second == 0);
}

TEST_CASE("restarts: cuts end with the first two where these are longer than what there is") {
  const OpGraph graph =
      testing::random_dag(1, {.min_ops = 200, .max_ops = 200, .edge_chance = 0.015});
  const Cluster cluster =
      testing::equal_devices(8, Bytes(1'000'000'000), Time(5), Bandwidth(1'000'000'000));
  const CostModel costs(graph, cluster);
  const PlaceOptions place;
  RestartOptions options{.work = 100'000, .place = place, .must_stop = [] { return false; }};
  const Restarts all = further_cuts(costs, Units(costs), options);
  REQUIRE(all.plans.size() > 4);
  const Time first = std::min(*all.plans[0].step, *all.plans[1].step);
  const auto cuts = [&](Time to_beat) {
    options.to_beat = to_beat;
    return further_cuts(costs, Units(costs), options);
  };
  CHECK(cuts(first).plans.size() == all.plans.size());
  CHECK(cuts(Time(first.count() * 100 / 104)).plans.size() == 2);
  CHECK(cuts(Time(first.count() * 100 / 104)).work < all.work);
}

TEST_CASE("restarts: beside a plan to beat, repairs are of what may beat the rest") {
  const OpGraph graph =
      testing::random_dag(1, {.min_ops = 200, .max_ops = 200, .edge_chance = 0.015});
  const PlaceOptions place;
  const Cluster cluster = testing::equal_devices(2, Bytes(720), Time(5), Bandwidth(1'000'000'000));
  const CostModel costs(graph, cluster);
  RestartOptions options{.work = 40'000, .place = place, .must_stop = [] { return false; }};
  const auto repaired_plans = [&] {
    const Restarts found = further_cuts(costs, Units(costs), options);
    for (const Restarts::Found& plan : found.plans)
      CHECK(!find_overflow(simulate(costs, plan.placed), cluster).has_value());
    return std::ranges::count(found.plans, std::optional<Time>(), &Restarts::Found::step);
  };
  CHECK(repaired_plans() == 3);
  options.to_beat = Time(1'000'000'000);
  CHECK(repaired_plans() == 1);
}

}  // namespace
}  // namespace baechi
