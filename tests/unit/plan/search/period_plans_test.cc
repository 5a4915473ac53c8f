// SPDX-License-Identifier: Apache-2.0
#include "baechi/plan/search/period_plans.h"

#include <doctest/doctest.h>

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "baechi/generate/generate.h"
#include "baechi/graph/op_graph_builder.h"
#include "baechi/plan/portfolio.h"
#include "baechi/plan/request/request.h"
#include "baechi/simulate/execution_simulator.h"
#include "baechi/verify/check_schedule.h"
#include "unit/graphs.h"
#include "unit/simulate/small_clusters.h"

namespace baechi {
namespace {

// A mixture of experts: in every layer the experts may run beside each other.
OpGraph layers_of_experts() { return generate_graph("moe", {.length = 256, .layers = 12}); }

Cluster four_devices(Bytes capacity) {
  return testing::equal_devices(4, capacity, Time(134'000), Bandwidth(5'700'000'000));
}

constexpr Bytes kRoom(64LL << 30);

// A graph that repeats, on four devices, and a plan that has everything on one.
struct Repeating {
  explicit Repeating(OpGraph repeats) : graph(std::move(repeats)) { REQUIRE(!layers.empty()); }

  PeriodPlans planned(double budget, const PlanRequest& request = {}, bool stop = false) const {
    return plans_by_period(
        costs, units, layers, base,
        {.budget = budget, .request = request, .place_window = best_placement, .must_stop = [stop] {
           return stop;
         }});
  }

  const OpGraph graph;
  const Cluster cluster = four_devices(kRoom);
  const CostModel costs{graph, cluster};
  const Units units{costs};
  const std::vector<Repetition> layers = find_repetitions(graph, kLeastPeriods);
  PlacedGraph base{Placement(graph.num_ops(), DeviceId(0)), std::nullopt};
};

TEST_CASE("periods: what is planned for a few layers is laid out over all, and spreads them") {
  const Repeating experts(layers_of_experts());
  const PeriodPlans found = experts.planned(0.1);
  REQUIRE(!found.plans.empty());
  CHECK(found.spent.seconds <= 0.1 * 1.0001);
  const Trace trace = simulate(experts.costs, found.plans.front());
  CHECK(!find_overflow(trace, experts.cluster).has_value());
  CHECK(trace.schedule.makespan * 3 < simulate(experts.costs, experts.base).schedule.makespan * 2);
}

//          +--> expert 0 --+
// split ---+--> expert 1 --+--> join, which is the next layer's split; expert 1 of a layer shares
//          +--> expert 2 --+      its device with expert 2 of the next, expert 0 is pinned
OpGraph tied_layers() {
  OpGraphBuilder builder;
  const auto add = [&](const std::string& name, std::int64_t time) {
    const OpId op = testing::timed(builder, {.name = name}, Time(time));
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
  Repeating tied(tied_layers());
  for (const OpId op : tied.graph.ops())
    if (const auto pin = tied.costs.pin(op)) tied.base.device[op] = *pin;
  const PeriodPlans found = tied.planned(0.02);
  REQUIRE(!found.plans.empty());
  for (const PlacedGraph& placed : found.plans) {
    CHECK(check_schedule(tied.graph, tied.cluster, simulate(tied.costs, placed).schedule).empty());
    CHECK(placed.device != tied.base.device);
  }
}

TEST_CASE("periods: who is told to stop plans nothing, and a cancelled window costs no plan") {
  const Repeating experts(layers_of_experts());
  CHECK(experts.planned(0.1, {}, /*stop=*/true).plans.empty());
  CancelFlag cancel;
  cancel.request();
  PlanRequest request;
  request.place.cancel = &cancel;
  CHECK(experts.planned(0.1, request).plans.empty());
}

TEST_CASE("periods: a base that is far better than any layout keeps its budget") {
  // A chain gains nothing from a second device, however it is laid out.
  const Repeating links(testing::chain(std::vector<Time>(40, Time(10)), Bytes(1'000'000)));
  for (const PlacedGraph& placed : links.planned(0.01).plans)
    CHECK(simulate(links.costs, placed).schedule.makespan >= Time(400));
}

TEST_SUITE("threads") {
  TEST_CASE("periods: the number of threads changes nothing") {
    const Repeating experts(layers_of_experts());
    const auto planned = [&](unsigned threads) {
      PlanRequest request;
      request.threads = threads;
      return experts.planned(0.02, request);
    };
    const PeriodPlans one = planned(1);
    REQUIRE(!one.plans.empty());
    REQUIRE(one.spent.seconds > 0.02 * 0.9999);  // all windows are planned
    for (const unsigned threads : {2U, 5U}) {
      CAPTURE(threads);
      const PeriodPlans many = planned(threads);
      CHECK(many.spent.seconds == one.spent.seconds);
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
