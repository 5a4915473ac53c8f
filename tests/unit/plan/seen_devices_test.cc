// SPDX-License-Identifier: Apache-2.0
#include "baechi/plan/seen_devices.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "baechi/place/placer.h"
#include "baechi/plan/planner.h"
#include "baechi/plan/search/spending.h"
#include "baechi/verify/check_plan.h"
#include "unit/graphs.h"
#include "unit/simulate/small_clusters.h"

namespace baechi::testing {
namespace {

ClusterSpec equal(std::size_t count, Bytes capacity = Bytes(1'000'000)) {
  return equal_devices(count, capacity, Time(2), Bandwidth(1'000'000'000)).spec();
}

OpGraph layers(std::uint64_t seed, double edge_chance) {
  return random_dag(seed, {.min_ops = 220, .max_ops = 220, .edge_chance = edge_chance});
}

std::size_t seen(const OpGraph& graph, const ClusterSpec& spec) {
  const Cluster cluster(spec);
  const CostModel costs(graph, cluster);
  const auto few = devices_to_see(costs, first_plans(costs, {}));
  return few == nullptr ? 0 : few->costs().cluster().num_devices();
}

TEST_CASE("seen devices: more than the list schedulers use, whatever else there is") {
  for (std::uint64_t seed = 0; seed < 10; ++seed) {
    CAPTURE(seed);
    const OpGraph graph = layers(seed, 0.005 * static_cast<double>(1 + seed));
    const Cluster cluster(equal(200));
    const CostModel costs(graph, cluster);
    const FirstPlans plans = first_plans(costs, {});
    REQUIRE(plans.devices.has_value());
    REQUIRE(plans.step.has_value());
    CHECK(plans.work ==
          work_of(find_placer("m-etf"), costs) + work_of(find_placer("m-sct"), costs));
    const std::size_t few = seen(graph, equal(200));
    if (few == 0) {
      CHECK(*plans.devices >= 64);
      continue;
    }
    CHECK(few > *plans.devices);
    CHECK(few <= 2 * std::max<std::size_t>(16, *plans.devices));
    CHECK(few == seen(graph, equal(120 + 2 * few)));
  }
  CHECK(seen(chain(std::vector<Time>(250, Time(10)), Bytes(8), Bytes(1)), equal(200)) == 16);
  CHECK(seen(chain(std::vector<Time>(250, Time(10)), Bytes(8), Bytes(1)), equal(31)) == 0);
  // Where they find no plan that fits, all devices may be needed.
  CHECK(seen(chain(std::vector<Time>(250, Time(10)), Bytes(8), Bytes(100)),
             equal(200, Bytes(90))) == 0);
}

TEST_CASE("auto: beyond the equal devices that have something to do, more of them change nothing") {
  int shortened = 0;
  for (std::uint64_t seed = 0; seed < 4; ++seed) {
    CAPTURE(seed);
    const OpGraph graph = layers(seed, 0.04);
    if (seen(graph, equal(128)) == 0) continue;
    ++shortened;
    const Cluster some(equal(128)), many(equal(200));
    PlanRequest request;
    request.budget = 0.002;
    const Plan a = std::get<Plan>(make_plan(CostModel(graph, some), request));
    const Plan b = std::get<Plan>(make_plan(CostModel(graph, many), request));
    CHECK(check_plan(graph, b).empty());
    CHECK(a.schedule == b.schedule);
    CHECK(b.devices.size() == 200);
    for (const MethodOutcome& method : b.methods)
      if (method.makespan.has_value()) CHECK(method.peaks.size() == 200);
  }
  CHECK(shortened > 1);
}

TEST_CASE("auto: the first step that it tells of is m-ETF's, before the graph is cut") {
  const OpGraph graph = random_dag(3, {.min_ops = 60, .max_ops = 60, .edge_chance = 0.05});
  const Cluster cluster(equal(4));
  const CostModel costs(graph, cluster);
  PlanRequest request;
  request.budget = 0.01;
  std::vector<SearchNews> told;
  request.watch = [&](const SearchNews& news) { told.push_back(news); };
  const Plan plan = std::get<Plan>(make_plan(costs, request));
  REQUIRE_FALSE(told.empty());
  CHECK(told.front().method == "m-etf");
  CHECK(told.front().step == first_plans(costs, request).step);
  CHECK(plan.makespan() <= *told.back().step);
}

}  // namespace
}  // namespace baechi::testing
