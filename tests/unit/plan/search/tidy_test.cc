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
#include "baechi/graph/op_graph_builder.h"
#include "baechi/plan/planner.h"
#include "baechi/verify/check_schedule.h"
#include "unit/graphs.h"

namespace baechi {
namespace {

constexpr std::int64_t kAmple = 100'000'000;

// Mostly operators of no account between some that take long, in groups now and then.
OpGraph mostly_light(std::uint64_t seed) {
  Random random(seed);
  OpGraphBuilder builder("light " + std::to_string(seed));
  const auto num_ops = static_cast<std::size_t>(random.between(20, 80));
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
    const Cluster cluster(uniform_cluster({.count = 2 + seed % 3,
                                           .capacity = Bytes(seed % 2 == 0 ? 500 : 100'000),
                                           .latency = Time(20)}));
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
    const OpId op = builder.add_operator({.name = name, .permanent = permanent});
    builder.set_time(op, "gpu", time);
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
    const Cluster cluster(
        uniform_cluster({.count = 4, .capacity = Bytes(110), .latency = microseconds(1)}));
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
  const Cluster cluster(
      uniform_cluster({.count = 3, .capacity = Bytes(1'000), .latency = microseconds(1)}));
  const CostModel costs(graph, cluster);
  const Units units(costs);
  const Problem problem{.costs = costs, .units = units};
  const Attempt start =
      attempt_at(problem, {{DeviceId(0), DeviceId(0), DeviceId(2), DeviceId(1), DeviceId(1)}});
  CHECK(!tidy(problem, start, {.may_lose = milliseconds(1), .work = kAmple}).has_value());
}

TEST_CASE("tidy: a plan that is proved to be the best stays as it is") {
  int proved = 0;
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    CAPTURE(seed);
    const OpGraph graph = testing::random_dag(seed, {.min_ops = 4, .max_ops = 8, .max_time = 3});
    const Cluster cluster = testing::random_cluster(seed);
    const CostModel costs(graph, cluster);
    PlanRequest request{.budget = 0.02};
    const PlanResult plain = make_plan(costs, request);
    request.tidy = true;
    const PlanResult tidied = make_plan(costs, request);
    const auto* plan = std::get_if<Plan>(&plain);
    if (plan == nullptr || plan->gap() != 0.0) continue;
    ++proved;
    CHECK(std::get<Plan>(tidied) == *plan);
  }
  CHECK(proved > 20);
}

}  // namespace
}  // namespace baechi
