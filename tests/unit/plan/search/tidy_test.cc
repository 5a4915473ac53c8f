// SPDX-License-Identifier: Apache-2.0
#include "baechi/plan/search/tidy.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <set>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "baechi/base/random.h"
#include "baechi/generate/transformer.h"
#include "baechi/graph/op_graph_builder.h"
#include "baechi/plan/planner.h"
#include "baechi/plan/portfolio.h"
#include "baechi/verify/check_schedule.h"
#include "property/effort.h"
#include "unit/graphs.h"
#include "unit/simulate/small_clusters.h"

namespace baechi {
namespace {

constexpr std::int64_t kAmple = 100'000'000;

// Mostly operators of no account between some that take long, in groups now and then.
OpGraph mostly_light(std::uint64_t seed, std::int64_t most_ops = 80) {
  Random random(seed);
  OpGraphBuilder builder("light " + std::to_string(seed));
  const auto num_ops = static_cast<std::size_t>(random.between(most_ops / 4, most_ops));
  for (std::size_t i = 0; i < num_ops; ++i) {
    const OpId op = builder.add_operator({.name = "op" + std::to_string(i),
                                          .permanent = Bytes(random.between(0, 20)),
                                          .temporary = Bytes(random.between(0, 4))});
    const bool heavy = random.chance(0.3);
    builder.set_time(op, "gpu",
                     Time(heavy ? random.between(20'000, 60'000) : random.between(0, 40)));
    builder.add_output(op, Bytes(random.between(0, 8)));
    if (random.chance(0.1)) builder.add_to_group(op, "group" + std::to_string(random.below(4)));
    if (random.chance(0.05)) builder.set_pin(op, "gpu:0");
    const std::size_t parents = random.below(3);
    for (std::size_t k = 0; k < parents && i > 0; ++k) {
      const OpId parent(random.below(i));
      if (k == 0 || random.chance(0.2))
        builder.connect(*builder.output(parent, 0), op);
      else
        builder.add_control_edge(parent, op);
      if (parents == 2 && i == 1) break;
    }
  }
  return std::move(builder).build();
}

std::size_t devices_of(const Placement& placement) {
  return std::set<DeviceId>(placement.begin(), placement.end()).size();
}

Attempt attempt_at(const Problem& problem, const Placement& placement) {
  Attempt attempt;
  offer_placement(problem, {placement, std::nullopt}, attempt);
  return attempt;
}

TEST_CASE("tidy: never loses more than it may, and no plan has more sends or devices than before") {
  int tried = 0, moved = 0, lost = 0;
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    CAPTURE(seed);
    const OpGraph graph = mostly_light(seed);
    const Cluster cluster =
        testing::equal_devices(2 + seed % 3, Bytes(seed % 2 == 0 ? 500 : 100'000), Time(20));
    const CostModel costs(graph, cluster);
    const Units units(costs);
    const ExecutionOrder order = seed % 5 == 0   ? ExecutionOrder::kNone
                                 : seed % 5 == 1 ? ExecutionOrder::kProgram
                                                 : ExecutionOrder::kPlanned;
    const Problem problem{.costs = costs, .units = units, .order = order};
    Random random(seed + 1);
    Placement placement(graph.num_ops(), DeviceId(0));
    for (const UnitId unit : units.keys()) {
      const std::span<const DeviceId> devices = units[unit].devices;
      const DeviceId device = devices[random.below(devices.size())];
      for (const OpId op : units[unit].ops) placement[op] = device;
    }
    const Attempt start = attempt_at(problem, placement);
    if (!start.placed.has_value()) continue;
    ++tried;
    const Time may_lose(seed % 3 == 0 ? 0 : start.makespan.count() / 2'000);
    const auto found = tidy(problem, start, {.may_lose = may_lose, .work = kAmple});
    if (!found.has_value()) continue;
    ++moved;
    lost += found->attempt.makespan > start.makespan ? 1 : 0;
    const Trace before = simulate(costs, *start.placed);
    const Trace after = simulate(costs, *found->attempt.placed);
    CHECK(after.schedule.makespan == found->attempt.makespan);
    CHECK(after.schedule.makespan <= start.makespan + may_lose);
    CHECK(check_schedule(graph, cluster, after.schedule, {.order = order}).empty());
    const std::size_t devices = devices_of(found->attempt.placed->device);
    CHECK(devices <= devices_of(placement));
    CHECK(after.schedule.transfers.size() <= before.schedule.transfers.size());
    CHECK((devices < devices_of(placement) ||
           after.schedule.transfers.size() < before.schedule.transfers.size()));
    const auto again = tidy(problem, start, {.may_lose = may_lose, .work = kAmple});
    CHECK(again->attempt.placed == found->attempt.placed);
  }
  CHECK(tried > 150);
  CHECK(moved * 2 > tried);
  CHECK(lost > 10);
}

//   table -> a (gpu:0, 1 ms) -> b (gpu:1, 1 ms)      `table` alone on gpu:2, `seed` on gpu:3
//   seed --------------------------^
OpGraph two_heavy(Bytes table) {
  OpGraphBuilder builder;
  const auto add = [&](const char* name, Time time, Bytes permanent) {
    const OpId op = testing::timed(builder, {.name = name, .permanent = permanent}, time);
    builder.add_output(op, Bytes(12));
    return op;
  };
  const OpId t = add("table", Time(0), table), s = add("seed", Time(0), Bytes(0));
  const OpId a = add("a", milliseconds(1), Bytes(50)), b = add("b", milliseconds(1), Bytes(50));
  builder.connect(*builder.output(t, 0), a);
  builder.connect(*builder.output(a, 0), b);
  builder.connect(*builder.output(s, 0), b);
  return std::move(builder).build();
}

TEST_CASE("tidy: initialisers alone on a device go to who reads them, if they fit there") {
  const Placement scattered{{DeviceId(2), DeviceId(3), DeviceId(0), DeviceId(1)}};
  for (const std::int64_t table : {10, 90}) {
    CAPTURE(table);
    const OpGraph graph = two_heavy(Bytes(table));
    const Cluster cluster = testing::equal_devices(4, Bytes(110), microseconds(1));
    const CostModel costs(graph, cluster);
    const Units units(costs);
    const Problem problem{.costs = costs, .units = units};
    const Attempt start = attempt_at(problem, scattered);
    const auto found = tidy(problem, start, {.work = kAmple});
    REQUIRE(found.has_value());
    const Placement& placement = found->attempt.placed->device;
    CHECK(placement[OpId(0)] == DeviceId(table == 10 ? 0 : 2));
    CHECK(placement[OpId(1)] == DeviceId(1));
    CHECK(found->islands == (table == 10 ? 2 : 1));
    CHECK(!tidy(problem, start, {.work = 10}).has_value());
  }
}

//   x0 --+--> heavy (gpu:1)        `light` on gpu:1 reads what `heavy` reads: on gpu:2 it would need
//   x1 --+--> light <-- y (gpu:2)  both tensors there as well, on gpu:0 `y` there
TEST_CASE("tidy: an island stays whose move would add a transfer") {
  OpGraphBuilder builder;
  const auto add = [&](const char* name) {
    const OpId op = builder.add_operator({.name = name});
    const bool light = std::string_view(name) == "light";
    builder.set_time(op, "gpu", light ? Time(0) : milliseconds(1));
    builder.add_output(op, Bytes(12));
    return op;
  };
  const OpId x0 = add("x0"), x1 = add("x1"), y = add("y"), heavy = add("heavy");
  const OpId light = add("light");
  for (const OpId from : {x0, x1, y}) builder.connect(*builder.output(from, 0), light);
  for (const OpId from : {x0, x1}) builder.connect(*builder.output(from, 0), heavy);
  const OpGraph graph = std::move(builder).build();
  const Cluster cluster = testing::equal_devices(3, Bytes(1'000), microseconds(1));
  const CostModel costs(graph, cluster);
  const Units units(costs);
  const Problem problem{.costs = costs, .units = units};
  const Attempt start =
      attempt_at(problem, {{DeviceId(0), DeviceId(0), DeviceId(2), DeviceId(1), DeviceId(1)}});
  CHECK(!tidy(problem, start, {.may_lose = milliseconds(1), .work = kAmple}).has_value());
}

// What the methods and the search find, as it is.
std::optional<Attempt> best_found(const CostModel& costs, const PlanRequest& request) {
  const PortfolioResult result = run_portfolio(costs, Units(costs), request);
  const Attempt* best = best_of(result.attempts);
  return best != nullptr ? std::optional(*best) : std::nullopt;
}

TEST_CASE("tidy: a plan of the planner loses 0.05% at the most, or 0.3% if asked") {
  std::uint64_t moved = 0;
  for (std::uint64_t seed = 0; seed < testing::effort(30, 6); ++seed) {
    CAPTURE(seed);
    const OpGraph graph = mostly_light(seed, 120);
    const Cluster cluster = testing::random_cluster(seed);
    const CostModel costs(graph, cluster);
    PlanRequest request{.budget = 0.02};
    const std::optional<Attempt> found = best_found(costs, request);
    if (!found.has_value()) continue;
    for (const bool asked : {false, true}) {
      request.tidy = asked;
      const Plan plan = std::get<Plan>(make_plan(costs, request));
      CHECK(plan.makespan().count() <=
            found->makespan.count() + found->makespan.count() * (asked ? 30 : 5) / 10'000);
      moved += placement_of(plan.schedule) == found->placed->device ? 0U : 1U;
    }
  }
  CHECK(moved > testing::effort(10, 6));
}

// Operators with an initialiser each. The expert divides them into two halves that are equal to the
// nanosecond, which nobody else finds, and has all initialisers on one device.
TEST_CASE("tidy: a plan that is proved to be the best stays as it is") {
  Random random(7);
  OpGraphBuilder builder;
  Placement expert;
  Time half[2];
  for (int i = 0; i < 40; ++i) {
    const OpId seed = builder.add_operator({.name = "seed" + std::to_string(i)});
    const OpId op = builder.add_operator({.name = "op" + std::to_string(i)});
    const int side = i % 2;
    const Time time = i < 39 ? Time(random.between(500'000, 5'000'000)) : half[0] - half[1];
    builder.set_time(seed, "gpu", Time(0));
    builder.set_time(op, "gpu", time);
    half[side] += time;
    builder.connect(builder.add_output(seed, Bytes(12)), op);
    expert.push_back(DeviceId(0));
    expert.push_back(DeviceId(side == 0 ? 0 : 1));
  }
  const OpGraph graph = std::move(builder).build();
  const Cluster cluster = testing::equal_devices(2, Bytes(10'000), Time(0));
  const CostModel costs(graph, cluster);
  const Units units(costs);
  PlanRequest request{.method = "all", .place = {.expert = &expert}, .budget = 0.01, .tidy = true};
  const Attempt found = *best_found(costs, request);
  REQUIRE(found.placed->device == expert);
  REQUIRE(tidy({.costs = costs, .units = units}, found, {.work = kAmple}).has_value());
  for (const bool bounds : {true, false}) {
    request.bounds = bounds;
    const Plan plan = std::get<Plan>(make_plan(costs, request));
    CHECK(plan.makespan() == half[0]);
    CHECK(placement_of(plan.schedule) == expert);
  }
}

// m-TOPO, which comes first, fills both devices; sending takes no time.
TEST_CASE("auto: of equal steps the plan on fewer devices wins") {
  const OpGraph graph = testing::chain(std::vector<Time>(6, milliseconds(1)), Bytes(8), Bytes(10));
  const Cluster cluster = testing::equal_devices(2, Bytes(1'000), Time(0));
  const CostModel costs(graph, cluster);
  const PlanRequest request{.optimize = {.level = OptimizeLevel::kNone}, .budget = 0.01};
  const Plan plan = std::get<Plan>(make_plan(costs, request));
  const MethodOutcome& first = plan.methods.front();
  REQUIRE(first.makespan == plan.makespan());
  REQUIRE(first.devices_used == 2);
  CHECK(devices_of(placement_of(plan.schedule)) == 1);
}

TEST_CASE(
    "tidy: the Transformer of the demo needs one device less and two thirds of the transfers") {
  const OpGraph graph = generate_transformer({.batch = 64});
  const Cluster cluster = testing::equal_devices(4, Bytes(std::int64_t{3} << 30), microseconds(134),
                                                 Bandwidth(5'700'000'000));
  const CostModel costs(graph, cluster);
  const Units units(costs);
  const Attempt found = *best_found(costs, {.budget = 0.5});
  const auto tidied = tidy({.costs = costs, .units = units}, found,
                           {.may_lose = Time(found.makespan.count() / 2'000), .work = kAmple});
  REQUIRE(tidied.has_value());
  const Trace trace = simulate(costs, *tidied->attempt.placed);
  CHECK(trace.schedule.makespan <= found.makespan + Time(found.makespan.count() / 2'000));
  CHECK(devices_of(tidied->attempt.placed->device) < devices_of(found.placed->device));
  CHECK(trace.schedule.transfers.size() * 3 <=
        simulate(costs, *found.placed).schedule.transfers.size() * 2);
}

}  // namespace
}  // namespace baechi
