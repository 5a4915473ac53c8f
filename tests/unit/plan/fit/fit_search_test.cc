// SPDX-License-Identifier: Apache-2.0
#include "baechi/plan/fit/fit_search.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "baechi/graph/op_graph_builder.h"
#include "baechi/place/placer.h"
#include "baechi/plan/attempt/attempt.h"
#include "baechi/plan/planner.h"
#include "baechi/plan/portfolio.h"
#include "baechi/schedule/execution_order.h"
#include "unit/graphs.h"

namespace baechi {
namespace {

constexpr DeviceId kFirst(0), kSecond(1);

struct Piece {  // an operator without edges
  std::int64_t permanent = 0, temporary = 0, output = 0;
  const char* kind = "*";
  const char* pin = nullptr;
};

OpGraph pieces(const std::vector<Piece>& all) {
  OpGraphBuilder builder;
  for (std::size_t i = 0; i < all.size(); ++i) {
    const std::string name = "p" + std::to_string(i);
    OperatorSpec spec{
        .name = name, .permanent = Bytes(all[i].permanent), .temporary = Bytes(all[i].temporary)};
    if (all[i].pin != nullptr) spec.pin = all[i].pin;
    const OpId op = builder.add_operator(spec);
    builder.set_time(op, all[i].kind, Time(10));
    if (all[i].output > 0) static_cast<void>(builder.add_output(op, Bytes(all[i].output)));
  }
  return std::move(builder).build();
}

Cluster devices(const std::vector<Device>& all) {
  ClusterSpec spec = uniform_cluster({.count = 1, .capacity = Bytes(1), .latency = Time(1)});
  spec.devices = all;
  return Cluster(std::move(spec));
}

Device device(std::string name, std::string kind, std::int64_t capacity) {
  return {std::move(name), std::move(kind), Bytes(capacity), "host", kFullSpeed};
}

std::optional<Placement> repaired(const OpGraph& graph, const Cluster& cluster,
                                  const Placement& start) {
  const CostModel costs(graph, cluster);
  const Units units(costs);
  FitSearch search(costs, units, {});
  std::optional<PlacedGraph> found = search.repair({start, std::nullopt});
  if (!found.has_value()) return std::nullopt;
  CHECK_FALSE(find_overflow(simulate(costs, *found), cluster).has_value());
  return std::move(found->device);
}

TEST_CASE("repair: many devices are relieved at once") {
  constexpr std::size_t kPieces = 400, kDevices = 16;
  const OpGraph graph = pieces(std::vector<Piece>(kPieces, {.permanent = 10}));
  const Cluster cluster(
      uniform_cluster({.count = kDevices, .capacity = Bytes(280), .latency = Time(1)}));
  const CostModel costs(graph, cluster);
  const Units units(costs);
  FitSearch search(costs, units, {.simulated_ops = 60 * std::int64_t{kPieces}});
  CHECK(search.repair({Placement(kPieces, kFirst), std::nullopt}).has_value());
}

// Of the first device's peak, the longest temporary one at a time can be taken off, and the next is
// hardly smaller.
TEST_CASE("repair: where many steps would be needed, it gives up") {
  constexpr std::int64_t kPieces = 900, kReplays = 100;
  std::vector<Piece> all;
  for (std::int64_t i = 0; i < kPieces; ++i) all.push_back({.temporary = 2'000 - i});
  std::vector<Device> many = {device("small", "gpu", 1'500)};
  for (const char* name : {"a", "b", "c", "d"}) many.push_back(device(name, "gpu", 2'000));
  const OpGraph graph = pieces(all);
  const Cluster cluster = devices(many);
  const CostModel costs(graph, cluster);
  const Units units(costs);
  FitSearch search(costs, units, {.simulated_ops = 2 * kReplays * kPieces});
  CHECK_FALSE(search.repair({Placement(all.size(), kFirst), std::nullopt}).has_value());
  CHECK(search.work() < kReplays * kPieces);
}

TEST_CASE("repair: nothing moves to a device that may not run it, and nobody makes room for it") {
  const Cluster cluster =
      devices({device("c", "cpu", 10), device("a", "gpu", 10), device("b", "gpu", 10)});
  // Two of 6 on a device of 10; a third operator sits where neither may go.
  const OpGraph graph =
      pieces({{.permanent = 6, .kind = "gpu"}, {.permanent = 6, .kind = "gpu"}, {.permanent = 4}});
  const std::optional<Placement> found = repaired(graph, cluster, {kSecond, kSecond, kFirst});
  REQUIRE(found.has_value());
  CHECK((*found)[OpId(0)] != (*found)[OpId(1)]);
  CHECK((*found)[OpId(2)] == kFirst);
  // The same by a pin, with nowhere to go at all.
  const OpGraph pinned = pieces({{.permanent = 6, .pin = "a"}, {.permanent = 6, .pin = "a"}, {}});
  CHECK_FALSE(repaired(pinned, cluster, {kSecond, kSecond, kFirst}).has_value());
}

//   a: 6 6 (of 10)    b: 4 4 (of 10): whatever moves makes it worse, an exchange does it.
TEST_CASE("repair: two operators change places where neither can move alone") {
  const Cluster cluster = devices({device("a", "gpu", 10), device("b", "gpu", 10)});
  const OpGraph graph =
      pieces({{.permanent = 6}, {.permanent = 6}, {.permanent = 4}, {.permanent = 4}});
  const std::optional<Placement> found =
      repaired(graph, cluster, {kFirst, kFirst, kSecond, kSecond});
  REQUIRE(found.has_value());
  CHECK((*found)[OpId(0)] != (*found)[OpId(1)]);
  CHECK((*found)[OpId(2)] != (*found)[OpId(3)]);
}

// The first device is 4 over, the second has 4 left. The two of 2 are just enough, in whatever
// order units are taken; one more, of 9, would be too much. So many units that none is tried alone.
TEST_CASE("repair: exactly what is too much moves, and no more") {
  std::vector<Piece> all = {{.permanent = 2}, {.permanent = 2}, {.permanent = 9}};
  all.resize(30);
  const Cluster cluster = devices({device("a", "gpu", 9), device("b", "gpu", 4)});
  const std::optional<Placement> found =
      repaired(pieces(all), cluster, Placement(all.size(), kFirst));
  REQUIRE(found.has_value());
  CHECK((*found)[OpId(0)] == kSecond);
  CHECK((*found)[OpId(1)] == kSecond);
  CHECK((*found)[OpId(2)] == kFirst);
}

// The peak is the moment at which the second operator starts: what it takes then is its share.
TEST_CASE("repair: an operator's share counts what it takes at the moment it starts") {
  const Cluster cluster = devices({device("a", "gpu", 10), device("b", "gpu", 8)});
  for (const Piece& second : {Piece{.temporary = 6}, Piece{.output = 6}}) {
    CAPTURE(second.temporary);
    const OpGraph graph = pieces({{.permanent = 7, .pin = "a"}, second, {.permanent = 2}});
    const std::optional<Placement> found = repaired(graph, cluster, {kFirst, kFirst, kSecond});
    REQUIRE(found.has_value());
    CHECK((*found)[OpId(1)] == kSecond);
  }
}

// An operator that no device has room for: each of a list scheduler's further tries ends so.
TEST_CASE("attempts: where something fits, further tries and repairs end with what they may take") {
  const OpGraph graph = pieces({{.permanent = 11}, {.permanent = 6}, {.permanent = 6}});
  const Cluster cluster = devices({device("a", "gpu", 10), device("b", "gpu", 10)});
  const CostModel costs(graph, cluster);
  const Units units(costs);
  const PlacerEntry& placer = find_placer("m-etf");
  const auto tried = [&](bool fits, std::int64_t care) {
    LastResort resort{.care = care};
    const Attempt attempt = own_choices(
        {.costs = costs, .units = units, .last_resort = &resort, .fits = fits}, placer, {});
    CHECK_FALSE(attempt.placed.has_value());
    return care - resort.care;
  };
  const std::int64_t all = tried(false, 0), one = work_of(placer, costs);
  CHECK(all > one);
  CHECK(tried(true, 0) == 0);
  CHECK(tried(true, 1) == one);
  CHECK(tried(true, all) == all);
  LastResort first{.care_to_fit = 1};  // where nothing fits yet, until repairs have been tried
  const Attempt few =
      own_choices({.costs = costs, .units = units, .last_resort = &first}, placer, {});
  CHECK(few.gave_up);
  CHECK(1 - first.care_to_fit == one);

  const OpGraph two = pieces({{.permanent = 6}, {.permanent = 6}});
  const CostModel costs_of_two(two, cluster);
  const Units units_of_two(costs_of_two);
  const auto repaired = [&](bool fits, std::int64_t work) {
    LastResort resort{.repairs = work};
    Attempt attempt;
    attempt.placer = &placer;
    attempt.misfit_plan = {{Placement(2, kFirst), std::nullopt}, Time(20)};
    repair({.costs = costs_of_two, .units = units_of_two, .last_resort = &resort, .fits = fits},
           nullptr, attempt);
    CHECK(attempt.placed.has_value() == (resort.spent > 0));
    return attempt.placed.has_value();
  };
  CHECK(repaired(false, 0));
  CHECK(repaired(true, LastResort::kAny));
  CHECK_FALSE(repaired(true, 0));

  for (const bool fits : {false, true}) {  // a plan of another method: no need to look for any
    LastResort resort;
    Attempt attempt;
    attempt.placer = &placer;
    repair({.costs = costs, .units = units, .last_resort = &resort, .fits = fits}, nullptr,
           attempt);
    CHECK(resort.searched == !fits);
  }
}

// One more heavy operator than devices: nothing fits, and list schedulers cost much on so many.
TEST_CASE("portfolio: where nothing fits in the end, all methods have tried all that they can") {
  std::vector<Piece> all(2'000, {.permanent = 0});
  all.insert(all.end(), 65, {.permanent = 6});
  const OpGraph graph = pieces(all);
  std::vector<Device> many;
  for (int i = 0; i < 64; ++i) many.push_back(device(std::to_string(i), "gpu", 10));
  const Cluster cluster = devices(many);
  const CostModel costs(graph, cluster);
  PlanRequest request;
  request.budget = 0.001;
  request.budget_to_fit = 0.001;
  request.optimize.level = OptimizeLevel::kNone;
  const PortfolioResult found = run_portfolio(costs, Units(costs), request);
  std::size_t list_schedulers = 0;
  for (const Attempt& attempt : found.attempts) {
    CHECK_FALSE(attempt.placed.has_value());
    CHECK_FALSE(attempt.gave_up);
    if (attempt.placer == nullptr || !attempt.placer->list_scheduler) continue;
    ++list_schedulers;
    CHECK(std::ranges::find(attempt.fallbacks, "reserve") != attempt.fallbacks.end());
  }
  CHECK(list_schedulers >= 2);
}

// Four operators on a CPU and two GPUs, found by a user: memory so tight that repair is needed.
TEST_CASE("planner: unequal kinds and tight memory get an answer") {
  OpGraphBuilder builder;
  const auto add = [&](const char* name, const char* kind, std::int64_t time,
                       std::int64_t permanent) {
    const OpId op = builder.add_operator({.name = name, .permanent = Bytes(permanent)});
    builder.set_time(op, kind, Time(time));
    return op;
  };
  const TensorId first = builder.add_output(add("o0", "gpu", 96'035, 0), Bytes(955'888));
  add("o1", "gpu", 340'760, 386'508);
  add("o2", "*", 0, 0);
  const OpId last = add("o3", "gpu", 336'208, 0);
  for (const std::int64_t bytes : {879'766, 786'455})
    static_cast<void>(builder.add_output(last, Bytes(bytes)));
  builder.connect(first, last);
  const OpGraph graph = std::move(builder).build();
  const Cluster cluster = devices({device("d0", "cpu", 2'603'480), device("d1", "gpu", 3'384'525),
                                   device("d3", "gpu", 2'603'480)});
  const CostModel costs(graph, cluster);
  const PlanResult result = make_plan(costs, {});
  CHECK(std::holds_alternative<Plan>(result));
}

// What fits in the order of its sequences need not fit in the executor's.
TEST_CASE("packing: what is found fits in the order in which it will run") {
  std::size_t found = 0, only_planned = 0;
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    CAPTURE(seed);
    const OpGraph graph = testing::random_dag(seed);
    const Placement on_one(graph.num_ops(), kFirst);
    const Cluster ample = testing::unit_latency_cluster(1, Bytes(1'000'000'000));
    const Bytes peak =
        simulate(CostModel(graph, ample), {on_one, std::nullopt}).devices[kFirst].peak;
    const Cluster tight = testing::unit_latency_cluster(2, Bytes(peak.count() * 55 / 100));
    const CostModel costs(graph, tight);
    const Units units(costs);
    for (const ExecutionOrderEntry& entry : execution_orders()) {
      FitSearch search(costs, units, {.order = entry.order});
      const std::optional<PlacedGraph> packed = search.pack();
      if (!packed.has_value()) continue;
      ++found;
      const PlacedGraph run = as_executed(*packed, entry.order, graph, 2);
      CHECK(run.order == packed->order);
      CHECK_FALSE(find_overflow(simulate(costs, run), costs.cluster()).has_value());
      const PlacedGraph freely = as_executed(*packed, ExecutionOrder::kNone, graph, 2);
      if (find_overflow(simulate(costs, freely), costs.cluster()).has_value()) ++only_planned;
    }
  }
  CHECK(found > 30);
  CHECK(only_planned > 0);
}

}  // namespace
}  // namespace baechi
