// SPDX-License-Identifier: Apache-2.0
#include "baechi/plan/period_plans.h"

#include <doctest/doctest.h>

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "baechi/generate/generate.h"
#include "baechi/graph/op_graph_builder.h"
#include "baechi/plan/planner.h"
#include "baechi/simulate/execution_simulator.h"
#include "baechi/verify/check_schedule.h"
#include "unit/graphs.h"

namespace baechi {
namespace {

// A mixture of experts: in every layer the experts may run beside each other.
OpGraph layers_of_experts() { return generate_graph("moe", {.length = 256, .layers = 12}); }

Cluster four_devices(Bytes capacity) {
  return Cluster(uniform_cluster({.count = 4,
                                  .capacity = capacity,
                                  .latency = Time(134'000),
                                  .bandwidth = Bandwidth(5'700'000'000)}));
}

constexpr Bytes kRoom(64LL << 30);

std::optional<PlacedGraph> on_one_device(const CostModel& costs) {
  return PlacedGraph{Placement(costs.graph().num_ops(), DeviceId(0)), std::nullopt};
}

TEST_CASE("periods: what is planned for a few layers is laid out over all, and spreads them") {
  const OpGraph graph = layers_of_experts();
  const Cluster cluster = four_devices(kRoom);
  const CostModel costs(graph, cluster);
  const Units units(costs);
  const std::vector<Repetition> layers = find_repetitions(graph, kLeastPeriods);
  REQUIRE(!layers.empty());
  const std::optional<PlacedGraph> base = on_one_device(costs);
  const PlanRequest request;
  const PeriodPlans found =
      plans_by_period(costs, units, layers, *base,
                      {.budget = 0.1, .request = request, .must_stop = [] { return false; }});
  REQUIRE(!found.plans.empty());
  CHECK(found.spent <= 0.1 * 1.0001);
  const Trace trace = simulate(costs, found.plans.front());
  CHECK(!find_overflow(trace, cluster).has_value());
  CHECK(trace.schedule.makespan * 3 < simulate(costs, *base).schedule.makespan * 2);
}

//          +--> expert 0 --+
// split ---+--> expert 1 --+--> join, which is the next layer's split; expert 1 of a layer shares
//          +--> expert 2 --+      its device with expert 2 of the next, expert 0 is pinned
OpGraph tied_layers() {
  OpGraphBuilder builder;
  const auto add = [&](const std::string& name, std::int64_t time) {
    const OpId op = builder.add_operator({.name = name});
    builder.set_time(op, "gpu", Time(time));
    builder.add_output(op, Bytes(1'000));
    return op;
  };
  OpId split = add("split", 1'000);
  for (int layer = 0; layer < 12; ++layer) {
    const std::string at = "/" + std::to_string(layer);
    const OpId join = add("join" + at, 1'000);
    for (int i = 0; i < 3; ++i) {
      const OpId expert = add("expert" + std::to_string(i) + at, 1'000'000);
      builder.connect(*builder.output(split, 0), expert);
      builder.connect(*builder.output(expert, 0), join);
      if (i == 0) builder.set_pin(expert, "gpu:3");
      if (i == 1) builder.add_to_group(expert, "tie" + std::to_string(layer + 1));
      if (i == 2) builder.add_to_group(expert, "tie" + std::to_string(layer));
    }
    split = join;
  }
  return std::move(builder).build();
}

TEST_CASE("periods: pins and colocation groups hold in every layout") {
  const OpGraph graph = tied_layers();
  const Cluster cluster = four_devices(kRoom);
  const CostModel costs(graph, cluster);
  const Units units(costs);
  const std::vector<Repetition> layers = find_repetitions(graph, kLeastPeriods);
  REQUIRE(!layers.empty());
  PlacedGraph base{Placement(graph.num_ops(), DeviceId(0)), std::nullopt};
  for (const OpId op : graph.ops())
    if (const auto pin = costs.pin(op)) base.device[op] = *pin;
  const PlanRequest request;
  const PeriodPlans found =
      plans_by_period(costs, units, layers, base,
                      {.budget = 0.02, .request = request, .must_stop = [] { return false; }});
  REQUIRE(!found.plans.empty());
  for (const PlacedGraph& placed : found.plans) {
    CHECK(check_schedule(graph, cluster, simulate(costs, placed).schedule).empty());
    CHECK(placed.device != base.device);
  }
}

TEST_CASE("periods: who is told to stop plans nothing, and a cancelled window costs no plan") {
  const OpGraph graph = layers_of_experts();
  const Cluster cluster = four_devices(kRoom);
  const CostModel costs(graph, cluster);
  const Units units(costs);
  const std::vector<Repetition> layers = find_repetitions(graph, kLeastPeriods);
  PlanRequest request;
  CHECK(plans_by_period(costs, units, layers, *on_one_device(costs),
                        {.budget = 0.1, .request = request, .must_stop = [] { return true; }})
            .plans.empty());
  CancelFlag cancel;
  cancel.request();
  request.place.cancel = &cancel;
  CHECK(plans_by_period(costs, units, layers, *on_one_device(costs),
                        {.budget = 0.1, .request = request, .must_stop = [] { return false; }})
            .plans.empty());
}

TEST_CASE("periods: a base that is far better than any layout keeps its budget") {
  // A chain gains nothing from a second device, however it is laid out.
  std::vector<Time> times(40, Time(10));
  const OpGraph graph = testing::chain(times, Bytes(1'000'000));
  const Cluster cluster = four_devices(kRoom);
  const CostModel costs(graph, cluster);
  const Units units(costs);
  const std::vector<Repetition> links = find_repetitions(graph, kLeastPeriods);
  REQUIRE(!links.empty());
  const PlanRequest request;
  const PeriodPlans found =
      plans_by_period(costs, units, links, *on_one_device(costs),
                      {.budget = 0.01, .request = request, .must_stop = [] { return false; }});
  for (const PlacedGraph& placed : found.plans)
    CHECK(simulate(costs, placed).schedule.makespan >= Time(400));
}

TEST_SUITE("threads") {
  TEST_CASE("periods: the number of threads changes nothing") {
    const OpGraph graph = layers_of_experts();
    const Cluster cluster = four_devices(kRoom);
    const CostModel costs(graph, cluster);
    const Units units(costs);
    const std::vector<Repetition> layers = find_repetitions(graph, kLeastPeriods);
    REQUIRE(!layers.empty());
    const auto planned = [&](unsigned threads) {
      PlanRequest request;
      request.threads = threads;
      return plans_by_period(
          costs, units, layers, *on_one_device(costs),
          {.budget = 0.02, .request = request, .must_stop = [] { return false; }});
    };
    const PeriodPlans one = planned(1);
    REQUIRE(!one.plans.empty());
    REQUIRE(one.spent > 0.02 * 0.9999);  // all windows are planned
    for (const unsigned threads : {2U, 3U, 8U}) {
      CAPTURE(threads);
      const PeriodPlans many = planned(threads);
      CHECK(many.spent == one.spent);
      REQUIRE(many.plans.size() == one.plans.size());
      for (std::size_t i = 0; i < one.plans.size(); ++i) {
        CHECK(many.plans[i].device == one.plans[i].device);
        CHECK(many.plans[i].order == one.plans[i].order);
      }
    }
  }
}

}  // namespace
}  // namespace baechi
