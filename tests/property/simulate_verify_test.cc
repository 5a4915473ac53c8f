// SPDX-License-Identifier: Apache-2.0
// Three accounts of one page of rules, written apart: the simulator, the verifier and the oracle.
#include <doctest/doctest.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "baechi/base/random.h"
#include "baechi/plan/attempt/simulated_plan.h"
#include "baechi/simulate/execution_simulator.h"
#include "baechi/verify/check_plan.h"
#include "baechi/verify/check_schedule.h"
#include "property/effort.h"
#include "unit/brute_force.h"
#include "unit/graphs.h"
#include "unit/simulate/random_placement.h"

namespace baechi {
namespace {

using testing::effort;
using testing::RandomDag;

RandomDag everything(Random& random) {
  RandomDag limits;
  limits.max_ops = 3 + random.below(20);
  limits.edge_chance = random.unit() * 0.5;
  limits.group_chance = random.chance(0.3) ? 0.3 : 0.0;
  limits.backward_chance = 0.3;
  limits.pin_chance = random.chance(0.3) ? 0.2 : 0.0;
  limits.cpu_chance = random.chance(0.5) ? 0.9 : 0.0;
  limits.max_time = random.chance(0.5) ? 3 : 20;  // short ones finish together
  limits.memory_mode = random.chance(0.5) ? MemoryMode::kRetain : MemoryMode::kDataflow;
  if (random.chance(0.3)) limits.variable_chance = 0.4;
  if (random.chance(0.3)) limits.write_chance = 0.4;
  return limits;
}

std::optional<PlacedGraph> random_plan(const CostModel& costs, Random& random) {
  const std::optional<Placement> placement = testing::random_placement(costs, random);
  if (!placement.has_value()) return std::nullopt;
  PlacedGraph placed{*placement, std::nullopt};
  if (random.chance(0.5)) placed.order = testing::random_order(costs, *placement, random);
  return placed;
}

std::string first_of(const std::vector<std::string>& sentences) {
  return sentences.empty() ? "" : sentences.front();
}

TEST_CASE("verify: what the simulator makes of any placement keeps every rule") {
  std::size_t checked = 0, too_large = 0;
  for (std::uint64_t seed = 0; seed < effort(8000); ++seed) {
    CAPTURE(seed);
    Random random(seed ^ 0xc0ffee);
    const OpGraph graph = testing::random_dag(seed, everything(random));
    const Cluster cluster = testing::random_cluster(seed, Bytes(random.between(20, 200)));
    const CostModel costs(graph, cluster);
    const std::optional<PlacedGraph> placed = random_plan(costs, random);
    if (!placed.has_value()) continue;
    const Trace trace = simulate(costs, *placed);
    REQUIRE(first_of(check_schedule(graph, cluster, trace.schedule, {.capacities = false})) == "");

    Plan plan;
    plan.cluster = cluster.spec();
    plan.schedule = trace.schedule;
    plan.devices = plan_devices(trace);
    REQUIRE(first_of(check_plan(graph, plan, {.capacities = false})) == "");
    REQUIRE(check_schedule(graph, cluster, trace.schedule).empty() !=
            find_overflow(trace, cluster).has_value());
    ++checked;
    if (find_overflow(trace, cluster).has_value()) ++too_large;
  }
  CHECK(checked > effort(6000));
  CHECK(too_large > effort(1000));
  CHECK(too_large < effort(6000));
}

Time other(Time time, Random& random) {
  const Time by(random.between(1, 4));
  return random.chance(0.5) ? time + by : time - by;
}

// Changes one thing about the plan that cannot be right. False when it found nothing to change.
bool break_somewhere(Schedule& schedule, Random& random) {
  OpSlot& slot = schedule.slots[OpId(random.below(schedule.slots.size()))];
  if (random.chance(0.1)) return schedule.makespan = other(schedule.makespan, random), true;
  if (random.chance(0.3) || schedule.transfers.empty()) {
    Time& end_point = random.chance(0.5) ? slot.start : slot.end;
    return end_point = other(end_point, random), true;
  }
  const std::size_t at = random.below(schedule.transfers.size());
  Transfer& transfer = schedule.transfers[at];
  const auto here = schedule.transfers.begin() + static_cast<std::ptrdiff_t>(at);
  switch (random.below(6)) {
    case 0:
      transfer.requested = other(transfer.requested, random);
      return true;
    case 1:
      transfer.start = other(transfer.start, random);
      return true;
    case 2:
      transfer.end = other(transfer.end, random);
      return true;
    case 3:
      schedule.transfers.erase(here);
      return true;
    case 4:
      schedule.transfers.insert(here, Transfer(transfer));
      return true;
    default:
      std::swap(transfer.from, transfer.to);
      return true;
  }
}

TEST_CASE("verify: one number changed at random anywhere in a plan is found") {
  std::size_t broken = 0;
  for (std::uint64_t seed = 0; seed < effort(8000); ++seed) {
    CAPTURE(seed);
    Random random(seed ^ 0xbad);
    const OpGraph graph = testing::random_dag(seed, everything(random));
    const Cluster cluster = testing::random_cluster(seed);
    const CostModel costs(graph, cluster);
    const std::optional<PlacedGraph> placed = random_plan(costs, random);
    if (!placed.has_value()) continue;
    Schedule schedule = simulate(costs, *placed).schedule;
    if (!break_somewhere(schedule, random)) continue;
    ++broken;
    REQUIRE_FALSE(check_schedule(graph, cluster, schedule).empty());
  }
  CHECK(broken > effort(6000));
}

TEST_CASE("oracle: its best plan simulates to its makespan, keeps every rule and is never beaten") {
  std::size_t solved = 0, infeasible = 0;
  for (std::uint64_t seed = 0; seed < effort(1500); ++seed) {
    CAPTURE(seed);
    Random random(seed ^ 0x0acae);
    RandomDag limits = everything(random);
    limits.max_ops = 6;
    const OpGraph graph = testing::random_dag(seed, limits);
    ClusterSpec spec = testing::random_cluster(seed, Bytes(random.between(10, 80))).spec();
    if (spec.devices.size() > 3) continue;
    const Cluster cluster(std::move(spec));
    const CostModel costs(graph, cluster);
    const std::optional<testing::Optimum> best = testing::optimal_makespan(graph, cluster);
    REQUIRE(best.has_value() == testing::feasible(graph, cluster));
    if (best.has_value()) {
      const Trace trace = simulate(costs, best->placed);
      REQUIRE(trace.schedule.makespan == best->makespan);
      REQUIRE(first_of(check_schedule(graph, cluster, trace.schedule)) == "");
    }
    ++(best.has_value() ? solved : infeasible);
    for (int attempt = 0; attempt < 20; ++attempt) {
      const std::optional<PlacedGraph> placed = random_plan(costs, random);
      if (!placed.has_value()) break;
      const Trace trace = simulate(costs, *placed);
      if (find_overflow(trace, cluster).has_value()) continue;
      REQUIRE(best.has_value());
      REQUIRE(trace.schedule.makespan >= best->makespan);
    }
  }
  CHECK(solved > effort(700));
  CHECK(infeasible > effort(100));
}

}  // namespace
}  // namespace baechi
