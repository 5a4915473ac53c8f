// SPDX-License-Identifier: Apache-2.0
#include "baechi/simulate/asking.h"

#include <doctest/doctest.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "baechi/base/random.h"
#include "baechi/bounds/asking.h"
#include "baechi/bounds/lower_bounds.h"
#include "baechi/schedule/execution_order.h"
#include "baechi/simulate/critical_path.h"
#include "baechi/simulate/execution_simulator.h"
#include "baechi/verify/check_schedule.h"
#include "unit/graph_sketch.h"
#include "unit/simulate/random_placement.h"
#include "unit/simulate/small_clusters.h"

namespace baechi::testing {
namespace {

Cluster asking_for(Time call, Time send, bool two_hosts = false, Time step = {}) {
  ClusterSpec spec = byte_per_ns(2, CommunicationMode::kParallel).spec();
  spec.host_time = HostTime{call, send, step};
  if (two_hosts) spec.devices[1].host = "other";
  return Cluster(std::move(spec));
}

// a(5) --4--> b(4), c(1): a and c on gpu:0, b on gpu:1. Without a host b ends at 13.
OpGraph three() {
  return GraphSketch().op("a", 5).op("b", 4).op("c", 1).tensor("a", 4, {"b"}).build();
}

struct Asked {
  const OpGraph& graph;
  const Schedule& schedule;

  std::pair<Time, Time> operator()(const char* name) const {  // asked for, started
    const OpId op = op_named(graph, name);
    return {schedule.asked[op], schedule.slots[op].start};
  }
};

std::pair<Time, Time> times(std::int64_t asked, std::int64_t start) {
  return {Time(asked), Time(start)};
}

Schedule replayed(const OpGraph& graph, const Cluster& cluster, ExecutionOrder order) {
  const PlacedGraph placed =
      as_executed(in_order(graph, {{"a", "c"}, {"b"}}), order, graph, cluster.num_devices());
  Schedule schedule = simulate(CostModel(graph, cluster), placed).schedule;
  const auto faults = check_schedule(graph, cluster, schedule, {.order = order});
  CHECK_MESSAGE(faults.empty(), faults.front());
  return schedule;
}

TEST_CASE("host: one thread asks in the order of starts, a transfer behind its producer") {
  const OpGraph graph = three();
  const Cluster cluster = asking_for(Time(3), Time(2));
  const Schedule schedule = replayed(graph, cluster, ExecutionOrder::kPlanned);
  const Asked at{graph, schedule};
  CHECK(at("a") == times(3, 3));  // to 8; its transfer is asked for at 5 and takes 8 to 12
  CHECK(at("c") == times(8, 8));
  CHECK(at("b") == times(11, 12));
  CHECK(schedule.transfers.front().start == Time(8));
  CHECK(schedule.makespan == Time(16));
}

TEST_CASE("host: where it takes longer than the devices, they wait for it") {
  const OpGraph graph = three();
  const Cluster cluster = asking_for(Time(6), Time(2));
  const Schedule planned = replayed(graph, cluster, ExecutionOrder::kPlanned);
  CHECK(Asked{graph, planned}("b") == times(20, 20));
  CHECK(planned.makespan == Time(24));
  // In the order of the file b is asked for before c.
  const Schedule program = replayed(graph, cluster, ExecutionOrder::kProgram);
  CHECK(Asked{graph, program}("b") == times(14, 15));
  CHECK(Asked{graph, program}("c") == times(20, 20));
  CHECK(program.makespan == Time(21));
  CHECK(bounds::asking(CostModel(graph, cluster)) == Time(3 * 6 + 1));
}

TEST_CASE("host: a transfer that is asked for late starts late") {
  const OpGraph graph = three();
  const Schedule schedule =
      replayed(graph, asking_for(Time(1), Time(20)), ExecutionOrder::kPlanned);
  CHECK(schedule.transfers.front().requested == Time(6));
  CHECK(schedule.transfers.front().start == Time(21));
  CHECK(Asked{graph, schedule}("c") == times(22, 22));
}

TEST_CASE("host: a step begins when its thread comes to the first of its work") {
  const OpGraph graph = three();
  const Cluster cluster = asking_for(Time(3), Time(2), false, Time(100));
  const Schedule schedule = replayed(graph, cluster, ExecutionOrder::kPlanned);
  const Asked at{graph, schedule};
  CHECK(at("a") == times(103, 103));
  CHECK(at("c") == times(108, 108));
  CHECK(schedule.makespan == Time(116));
  CHECK(lower_bounds(CostModel(graph, cluster)).front().value > Time(101));
  Schedule early = schedule;
  for (Time& asked : early.asked) asked -= Time(1);
  CHECK(
      check_schedule(graph, cluster, early).front() ==
      "host 'localhost' begins to ask for operator 'a' at 99 ns, not at 100 ns, when it has asked "
      "for what comes before");
}

TEST_CASE("host: every host has a thread of its own") {
  const OpGraph graph = three();
  const Cluster cluster = asking_for(Time(6), Time(2), true);
  const Schedule schedule = replayed(graph, cluster, ExecutionOrder::kPlanned);
  const Asked at{graph, schedule};
  CHECK(at("c") == times(14, 14));
  CHECK(at("b") == times(6, 15));
  CHECK(bounds::asking(CostModel(graph, cluster)) == Time(2 * 6 + 1));
}

TEST_CASE("verify: what is asked for too early, twice at once, or started before") {
  const OpGraph graph = three();
  const Cluster cluster = asking_for(Time(6), Time(2));
  const Schedule right = replayed(graph, cluster, ExecutionOrder::kPlanned);
  const auto fault = [&](const auto& change) {
    Schedule wrong = right;
    change(wrong);
    const auto faults = check_schedule(graph, cluster, wrong);
    return faults.empty() ? "" : faults.front();
  };
  const OpId b = op_named(graph, "b"), c = op_named(graph, "c");
  CHECK(fault([&](Schedule& s) { s.asked[b] = Time(19); }) ==
        "host 'localhost' begins to ask for operator 'b' at 13 ns, not at 14 ns, when it has asked "
        "for what comes before");
  CHECK(fault([&](Schedule& s) { std::swap(s.asked[b], s.asked[c]); }) != "");
  CHECK(fault([&](Schedule& s) { s.asked.clear(); }) ==
        "the plan says of 0 operators when they are asked for, the graph has 3");
  CHECK(fault([&](Schedule& s) { s.slots[c] = {kGpu0, Time(11), Time(12)}; }) ==
        "operator 'c' on 'gpu:0' starts at 11 ns, before its host has asked for it at 14 ns");
  CHECK(fault([&](Schedule& s) {
          s.transfers.front().start = Time(7);
          s.transfers.front().end = Time(11);
        }) != "");
  CHECK(fault([&](Schedule& s) { s.asked[c] = Time(13); }) != "");
}

TEST_CASE(
    "host: what the simulator makes of any placement keeps the rules, and has a critical path") {
  std::size_t checked = 0, waits = 0;
  for (std::uint64_t seed = 0; seed < 1500; ++seed) {
    CAPTURE(seed);
    Random random(seed ^ 0xa5cull);
    const OpGraph graph = random_dag(seed, varied_limits(random));
    ClusterSpec spec = varied_cluster(seed, random).spec();
    const Cluster without(spec);
    spec.host_time = HostTime{Time(random.between(0, 6)), Time(random.between(0, 6)),
                              Time(random.between(0, 9))};
    const Cluster cluster(std::move(spec));
    const CostModel costs(graph, cluster);
    const std::optional<Placement> placement = random_placement(costs, random);
    if (!placement.has_value()) continue;
    PlacedGraph placed{*placement, std::nullopt};
    if (random.chance(0.5)) placed.order = random_order(costs, *placement, random);
    const ExecutionOrder order =
        random.chance(0.3) ? ExecutionOrder::kProgram : ExecutionOrder::kPlanned;
    placed = as_executed(std::move(placed), order, graph, cluster.num_devices());
    const Schedule schedule = simulate(costs, placed).schedule;
    const auto faults =
        check_schedule(graph, cluster, schedule, {.capacities = false, .order = order});
    REQUIRE_MESSAGE(faults.empty(), faults.front());
    REQUIRE(bounds::asking(costs) <= schedule.makespan);
    if (check_schedule(graph, cluster, schedule, {.order = order}).empty())
      for (const NamedBound& bound : lower_bounds(costs)) REQUIRE(bound.value <= schedule.makespan);
    const CriticalPath path = critical_path(graph, cluster, schedule);
    Time total = path.links.front().start;
    for (const CriticalUse use : {CriticalUse::kCompute, CriticalUse::kTransfer,
                                  CriticalUse::kDeviceWait, CriticalUse::kQueueWait})
      total += path.total(use);
    REQUIRE(total == schedule.makespan);
    ++checked;
    if (path.links.front().start > Time(0)) ++waits;
    REQUIRE(simulate(CostModel(graph, without), placed).schedule.asked.empty());
  }
  CHECK(checked > 1000);
  CHECK(waits > 300);
}

// Of what takes no time, a schedule does not show which was served first.
TEST_CASE("host: operators and transfers of one moment keep the rules, in whatever order") {
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    CAPTURE(seed);
    Random random(seed ^ 0x0a11);
    GraphSketch sketch;
    for (const char* name : {"z", "a", "b", "c", "d"}) sketch.op(name, 0);
    sketch.tensor("a", 0, {"c"}).tensor("b", 0, {"d"});
    const OpGraph graph = sketch.build();
    ClusterSpec spec = byte_per_ns(2, CommunicationMode::kSequential).spec();
    spec.host_time = HostTime{Time(1), Time(8)};
    const Cluster cluster(std::move(spec));
    const CostModel costs(graph, cluster);
    const Placement placement = *random_placement(costs, random);
    const PlacedGraph placed = as_executed({placement, random_order(costs, placement, random)},
                                           ExecutionOrder::kProgram, graph, cluster.num_devices());
    const auto faults = check_schedule(graph, cluster, simulate(costs, placed).schedule,
                                       {.order = ExecutionOrder::kProgram});
    REQUIRE_MESSAGE(faults.empty(), faults.front());
  }
}

TEST_CASE("host: that takes no time changes nothing") {
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    CAPTURE(seed);
    Random random(seed ^ 0x0051);
    const OpGraph graph = random_dag(seed, varied_limits(random));
    ClusterSpec spec = varied_cluster(seed, random).spec();
    const Cluster without(spec);
    spec.host_time = HostTime{};
    const Cluster cluster(spec);
    spec.host_time->step = Time(50);
    const Cluster late(std::move(spec));
    const CostModel costs(graph, cluster), same(graph, without), behind(graph, late);
    const std::optional<Placement> placement = random_placement(costs, random);
    if (!placement.has_value()) continue;
    const PlacedGraph placed{*placement, random_order(costs, *placement, random)};
    Trace with = simulate(costs, placed);
    with.schedule.asked.clear();
    REQUIRE(with == simulate(same, placed));
    const Time makespan = with.schedule.makespan;
    REQUIRE(simulate(behind, placed).schedule.makespan ==
            (makespan > Time(0) ? makespan + Time(50) : makespan));
  }
}

}  // namespace
}  // namespace baechi::testing
