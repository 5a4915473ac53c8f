// SPDX-License-Identifier: Apache-2.0
// A plan is made, kept within memory and checked for the order in which it will run.
#include "baechi/schedule/execution_order.h"

#include <doctest/doctest.h>

#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "baechi/base/random.h"
#include "baechi/plan/attempt/attempt.h"
#include "baechi/plan/attempt/simulated_plan.h"
#include "baechi/plan/fit/memory_needs.h"
#include "baechi/plan/planner.h"
#include "baechi/plan/robust.h"
#include "baechi/simulate/execution_simulator.h"
#include "baechi/verify/check_plan.h"
#include "property/effort.h"
#include "unit/graph_sketch.h"
#include "unit/graphs.h"
#include "unit/simulate/random_placement.h"
#include "unit/simulate/small_clusters.h"

namespace baechi {
namespace {

using testing::byte_per_ns;
using testing::in_any_order;
using testing::in_order;
using testing::random_cluster;
using testing::random_dag;

constexpr ExecutionOrder kOrders[] = {ExecutionOrder::kPlanned, ExecutionOrder::kProgram,
                                      ExecutionOrder::kNone};

// In the order of the file: seed (1 ns), slow (10), which waits for seed, quick (2), and after (10),
// which reads what quick makes.
OpGraph three_ways() {
  return testing::GraphSketch()
      .ops({{"seed", 1}, {"slow", 10}, {"quick", 2}, {"after", 10}})
      .tensors({{"seed", 0, {"slow"}}, {"quick", 0, {"after"}}})
      .build();
}

// Of all placements, those that fit as they are executed in that order, by their step.
std::optional<Time> best_of_all_placements(const CostModel& costs, ExecutionOrder order) {
  const OpGraph& graph = costs.graph();
  const std::size_t num_devices = costs.cluster().num_devices();
  std::optional<Time> best;
  Placement placement(graph.num_ops(), DeviceId(0));
  for (;;) {
    const Trace trace =
        simulate(costs, as_executed({placement, std::nullopt}, order, graph, num_devices));
    if (!find_overflow(trace, costs.cluster()).has_value() &&
        (!best.has_value() || trace.schedule.makespan < *best))
      best = trace.schedule.makespan;
    std::size_t digit = 0;
    for (; digit < graph.num_ops(); ++digit) {
      DeviceId& device = placement[OpId(digit)];
      if (device.index() + 1 < num_devices) {
        device = DeviceId(device.index() + 1);
        break;
      }
      device = DeviceId(0);
    }
    if (digit == graph.num_ops()) return best;
  }
}

PlanRequest request_for(ExecutionOrder order, const std::string& method = "auto") {
  PlanRequest request;
  request.method = method;
  request.place.order = order;
  request.budget = 0.02;
  request.bounds = false;
  request.suggest = false;
  return request;
}

//            0  1  2                 10 11 12 13                23
//   planned  [quick][ slow                ]        gpu:1  [seed]  [after              ] until 12
//   program     [ slow              ][quick]               [after              ]        until 23
TEST_CASE("execution order: the same placement, worked by hand in each of them") {
  const OpGraph graph = three_ways();
  const Cluster cluster = byte_per_ns(2, CommunicationMode::kParallel);
  const CostModel costs(graph, cluster);
  const auto step = [&](const PlacedGraph& placed, ExecutionOrder order) {
    return simulate(costs, as_executed(placed, order, graph, 2)).schedule.makespan;
  };
  const PlacedGraph quick_first = in_order(graph, {{"quick", "slow"}, {"seed", "after"}});
  const PlacedGraph slow_first = in_order(graph, {{"slow", "quick"}, {"seed", "after"}});
  CHECK(step(quick_first, ExecutionOrder::kPlanned) == Time(12));
  CHECK(step(slow_first, ExecutionOrder::kPlanned) == Time(23));
  for (const PlacedGraph& placed : {quick_first, slow_first}) {
    CHECK(step(placed, ExecutionOrder::kProgram) == Time(23));
    CHECK(step(placed, ExecutionOrder::kNone) == Time(12));
  }
}

TEST_CASE("execution order: a file that is not in topological order still has a program order") {
  const OpGraph graph = testing::GraphSketch()
                            .ops({{"late", 1}, {"early", 1}, {"last", 1}})
                            .tensor("early", 0, {"late"})
                            .build();
  const PlacedGraph placed =
      as_executed({Placement(3, DeviceId(0)), std::nullopt}, ExecutionOrder::kProgram, graph, 1);
  CHECK((*placed.order)[DeviceId(0)] == std::vector<OpId>{OpId(1), OpId(0), OpId(2)});
}

// The search of a plan for one order is not that of another: brute force over all placements tells.
TEST_CASE("execution order: auto finds the best placement for the order that runs") {
  int optimal = 0, tried = 0, other_is_worse = 0;
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    const OpGraph graph = random_dag(seed, {.min_ops = 5, .max_ops = 7, .max_tensor_bytes = 12});
    const Cluster cluster = byte_per_ns(2, CommunicationMode::kDuplex, Time(1));
    const CostModel costs(graph, cluster);
    for (const ExecutionOrder order : {ExecutionOrder::kProgram, ExecutionOrder::kNone}) {
      CAPTURE(seed);
      CAPTURE(execution_order_name(order));
      const PlanResult result = make_plan(costs, request_for(order));
      REQUIRE(std::holds_alternative<Plan>(result));
      const Plan& plan = std::get<Plan>(result);
      CHECK(plan.order == order);
      CHECK(check_plan(graph, plan) == std::vector<std::string>{});
      const std::optional<Time> best = best_of_all_placements(costs, order);
      REQUIRE(best.has_value());
      CHECK(plan.makespan() >= *best);
      ++tried;
      optimal += plan.makespan() == *best ? 1 : 0;
      const PlanResult other = make_plan(costs, request_for(ExecutionOrder::kPlanned));
      const Plan there = replayed(std::get<Plan>(other), costs, order);
      other_is_worse += there.makespan() > plan.makespan() ? 1 : 0;
      CHECK(there.makespan() >= *best);
    }
  }
  CHECK(optimal * 20 >= tried * 19);
  CHECK(other_is_worse * 10 >= tried);
}

TEST_CASE("execution order: every method's plan is replayed, and right, in its order") {
  for (std::uint64_t seed = 0; seed < testing::effort(12, 12); ++seed) {
    const OpGraph graph = random_dag(seed, {.min_ops = 6, .max_ops = 14, .group_chance = 0.2});
    const Cluster cluster = random_cluster(seed);
    const CostModel costs(graph, cluster);
    for (const ExecutionOrder order : kOrders)
      for (const char* method : {"all", "refine", "partition", "chain", "m-sct", "exact"}) {
        CAPTURE(seed);
        CAPTURE(execution_order_name(order));
        CAPTURE(method);
        const PlanResult result = make_plan(costs, request_for(order, method));
        const Plan* plan = std::get_if<Plan>(&result);
        if (plan == nullptr) continue;
        CHECK(plan->order == order);
        CHECK(check_plan(graph, *plan) == std::vector<std::string>{});
        CHECK(replayed(*plan, costs, order).makespan() == plan->makespan());
        for (const MethodOutcome& row : plan->methods)
          if (row.makespan.has_value())
            CHECK(plan->makespan().count() * 500 <= row.makespan->count() * 501);
      }
  }
}

// A third of the memory of everything: some plans fit in one order and not in another.
TEST_CASE(
    "execution order: what fits, fits in the order that runs, and nothing is proved wrongly") {
  std::uint64_t plans = 0, proofs = 0, differ = 0;
  for (std::uint64_t seed = 0; seed < testing::effort(60, 5); ++seed) {
    const OpGraph graph = random_dag(seed, {.min_ops = 4,
                                            .max_ops = 6,
                                            .max_tensor_bytes = 20,
                                            .max_permanent_bytes = 2,
                                            .max_temporary_bytes = 12});
    Bytes all;
    for (const OpId op : graph.ops())
      all += graph[op].permanent + graph[op].temporary + graph.output_bytes(op);
    const Cluster cluster =
        byte_per_ns(2, CommunicationMode::kParallel, Time(1), Bytes(1 + all.count() * 45 / 100));
    const CostModel costs(graph, cluster);
    for (const ExecutionOrder order : {ExecutionOrder::kProgram, ExecutionOrder::kNone}) {
      CAPTURE(seed);
      CAPTURE(execution_order_name(order));
      const std::optional<Time> best = best_of_all_placements(costs, order);
      const PlanResult result = make_plan(costs, request_for(order));
      if (const auto* plan = std::get_if<Plan>(&result)) {
        CHECK(best.has_value());
        CHECK(check_plan(graph, *plan) == std::vector<std::string>{});
        ++plans;
        continue;
      }
      CHECK_FALSE(best.has_value());
      proofs += std::get<Unplaceable>(result).proved ? 1U : 0U;
      const PlanResult planned = make_plan(costs, request_for(ExecutionOrder::kPlanned));
      if (!std::holds_alternative<Plan>(planned)) continue;
      ++differ;
      CHECK_FALSE(std::get<Unplaceable>(result).proved);
    }
  }
  CHECK(plans > testing::effort(20, 5));
  CHECK(proofs > testing::effort(5, 5));
  if (testing::effort(60, 5) == 60) CHECK(differ > 0);
}

bool all_take_time(const OpGraph& graph, const Schedule& schedule) {
  for (const OpId op : graph.ops())
    if (schedule.slots[op].start == schedule.slots[op].end) return false;
  return true;
}

// Where every operator takes time, one schedule alone keeps an executor's own order: the verifier,
// which knows no simulator, must accept it and no other.
TEST_CASE("verify: accepts the schedule that an executor's order makes, and no other") {
  int same = 0, others = 0;
  for (std::uint64_t seed = 0; seed < 400; ++seed) {
    const OpGraph graph = random_dag(seed, {.max_ops = 9});
    const Cluster cluster = random_cluster(seed);
    const CostModel costs(graph, cluster);
    Random random(seed);
    const std::optional<Placement> placement = testing::random_placement(costs, random);
    if (!placement.has_value()) continue;
    const Schedule planned =
        simulate(costs, {*placement, testing::random_order(costs, *placement, random)}).schedule;
    for (const ExecutionOrder order : {ExecutionOrder::kProgram, ExecutionOrder::kNone}) {
      CAPTURE(seed);
      CAPTURE(execution_order_name(order));
      const Schedule executed = simulate(costs, as_executed({*placement, std::nullopt}, order,
                                                            graph, cluster.num_devices()))
                                    .schedule;
      CHECK(check_schedule(graph, cluster, executed, {.order = order}) ==
            std::vector<std::string>{});
      const bool accepted = check_schedule(graph, cluster, planned, {.order = order}).empty();
      if (planned == executed) CHECK(accepted);
      if (!all_take_time(graph, planned)) continue;
      CHECK(accepted == (planned == executed));
      ++(planned == executed ? same : others);
    }
  }
  CHECK(same > 50);
  CHECK(others > 50);
}

// What is ready in the same moment, but only after a copy that takes none, comes after what is there.
TEST_CASE("verify: without an order schedules are right where operators and copies take no time") {
  std::size_t instant = 0;
  for (std::uint64_t seed = 0; seed < 400; ++seed) {
    CAPTURE(seed);
    const OpGraph graph = random_dag(seed, {.max_ops = 9, .max_time = 1, .max_tensor_bytes = 1});
    const Cluster cluster = byte_per_ns(2 + seed % 2, CommunicationMode::kParallel, Time(0));
    const CostModel costs(graph, cluster);
    Random random(seed);
    const std::optional<Placement> placement = testing::random_placement(costs, random);
    REQUIRE(placement.has_value());
    const Schedule executed =
        simulate(costs, as_executed({*placement, std::nullopt}, ExecutionOrder::kNone, graph,
                                    cluster.num_devices()))
            .schedule;
    CHECK(check_schedule(graph, cluster, executed, {.order = ExecutionOrder::kNone}) ==
          std::vector<std::string>{});
    for (const Transfer& transfer : executed.transfers)
      instant += transfer.requested == transfer.end;
  }
  CHECK(instant > 200);
}

TEST_CASE("verify: names who is out of turn") {
  const OpGraph graph = three_ways();
  const Cluster cluster = byte_per_ns(2, CommunicationMode::kParallel);
  const CostModel costs(graph, cluster);
  const Schedule quick_first =
      simulate(costs, in_any_order(graph, {{"quick", "slow"}, {"seed", "after"}})).schedule;
  CHECK(check_schedule(graph, cluster, quick_first, {.order = ExecutionOrder::kProgram}) ==
        std::vector<std::string>{
            "operator 'quick' on 'gpu:0' starts at 0 ns, before operator 'slow', "
            "which comes first in the graph's file"});
  const Schedule slow_first =
      simulate(costs, in_order(graph, {{"slow", "quick"}, {"seed", "after"}})).schedule;
  CHECK(check_schedule(graph, cluster, slow_first, {.order = ExecutionOrder::kNone}) ==
        std::vector<std::string>{"operator 'slow' on 'gpu:0' starts at 1 ns, before operator "
                                 "'quick', which could start at 0 ns and comes first without an "
                                 "order"});
}

// gpu:1 is half as fast. There `read` takes 2000 ns; on gpu:0 1000, after its input has come for 1000:
// two things that are seldom late together.
TEST_CASE("execution order: of plans that are as fast, the one that is the best at worst") {
  const OpGraph graph = testing::GraphSketch()
                            .ops({{"make", 1}, {"read", 1'000}})
                            .tensor("make", 1'000, {"read"})
                            .build();
  ClusterSpec spec = byte_per_ns(2, CommunicationMode::kParallel, Time(0), Bytes(10'000)).spec();
  spec.devices[1].speed = Speed(kFullSpeed.count() / 2);
  const Cluster cluster(std::move(spec));
  const CostModel costs(graph, cluster);
  const Units units(costs);
  const PlanRequest request = request_for(ExecutionOrder::kNone);
  const Problem problem{.costs = costs, .units = units, .order = ExecutionOrder::kNone};
  std::vector<Attempt> attempts(2);
  REQUIRE(offer_placement(problem, in_any_order(graph, {{}, {"make", "read"}}), attempts[0]));
  REQUIRE(offer_placement(problem, in_any_order(graph, {{"read"}, {"make"}}), attempts[1]));
  CHECK(attempts[0].makespan == attempts[1].makespan);
  CHECK(most_robust_of_fastest(costs, attempts, request) == 1);
  std::swap(attempts[0], attempts[1]);
  CHECK(most_robust_of_fastest(costs, attempts, request) == 0);
}

// As above, with `make` held where it is: without an order both are candidates of the planner.
TEST_CASE("execution order: the planner takes the plan that is the best at worst") {
  for (const std::size_t slow : {0U, 1U}) {
    CAPTURE(slow);
    OpGraphBuilder builder("pair");
    const OpId make = testing::timed(
        builder, {.name = "make", .pin = "gpu:" + std::to_string(slow)}, Time(1), kAnyKind);
    const OpId read = testing::timed(builder, {.name = "read"}, Time(1'000), kAnyKind);
    builder.connect(builder.add_output(make, Bytes(1'000)), read);
    const OpGraph graph = std::move(builder).build();
    ClusterSpec spec = byte_per_ns(2, CommunicationMode::kParallel, Time(0), Bytes(10'000)).spec();
    spec.devices[slow].speed = Speed(kFullSpeed.count() / 2);
    const Cluster cluster(std::move(spec));
    const CostModel costs(graph, cluster);
    const PlanResult result = make_plan(costs, request_for(ExecutionOrder::kNone));
    const auto* plan = std::get_if<Plan>(&result);
    REQUIRE(plan != nullptr);
    CHECK(plan->makespan() == Time(2'002));
    CHECK(plan->schedule.slots[read].device.index() == 1 - slow);
  }
}

}  // namespace
}  // namespace baechi
