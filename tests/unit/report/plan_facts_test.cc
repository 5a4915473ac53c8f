// SPDX-License-Identifier: Apache-2.0
#include "baechi/report/facts/plan_facts.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "baechi/base/random.h"
#include "baechi/graph/op_graph_builder.h"
#include "baechi/plan/attempt/simulated_plan.h"
#include "baechi/simulate/execution_simulator.h"
#include "unit/graphs.h"
#include "unit/simulate/random_placement.h"
#include "unit/simulate/small_clusters.h"

namespace baechi {
namespace {

MemoryCurve points_of(const std::vector<MemoryStep>& steps) {
  MemoryCurve points;
  for (const MemoryStep& step : steps) points.push_back({step.at, step.bytes});
  return points;
}

Plan plan_from(const OpGraph& graph, const Cluster& cluster, const Trace& trace) {
  Plan plan;
  plan.graph_name = graph.name();
  plan.cluster = cluster.spec();
  plan.memory_mode = graph.memory_mode();
  plan.method = "given";
  plan.schedule = trace.schedule;
  plan.devices = plan_devices(trace);
  return plan;
}

void check_against_trace(const OpGraph& graph, const Cluster& cluster, const Trace& trace) {
  const PlanFacts facts = plan_facts(graph, plan_from(graph, cluster, trace));
  for (const DeviceId device : cluster.devices()) {
    CAPTURE(device.value());
    const DeviceTrace& seen = trace.devices[device];
    REQUIRE(facts.curves[device] == points_of(seen.memory));
    const PeakFacts& peak = facts.peaks[device];
    REQUIRE(peak.bytes == seen.peak);
    REQUIRE(peak.at == seen.peak_at);
    Bytes parts, held;
    for (const Bytes bytes : peak.parts) parts += bytes;
    for (const HeldMemory& holder : peak.holders) held += holder.bytes;
    REQUIRE(parts == seen.peak);
    if (peak.more_holders == 0) REQUIRE(held == seen.peak);
    const IdleTime& idle = facts.waits.idle[device];
    REQUIRE(seen.busy + idle.elsewhere + idle.queued + idle.moving + idle.other + idle.after ==
            trace.schedule.makespan);
  }
}

TEST_CASE("plan facts: curves, peaks and idle times are those that the simulator saw") {
  for (std::uint64_t seed = 0; seed < 600; ++seed) {
    CAPTURE(seed);
    Random random(seed);
    testing::RandomDag limits;
    limits.backward_chance = 0.3;
    limits.max_time = random.chance(0.5) ? 2 : 20;
    limits.memory_mode = random.chance(0.5) ? MemoryMode::kRetain : MemoryMode::kDataflow;
    const OpGraph graph = testing::random_dag(seed, limits);
    const Cluster cluster = testing::random_cluster(seed);
    const CostModel costs(graph, cluster);
    const std::optional<Placement> placement = testing::random_placement(costs, random);
    if (!placement.has_value()) continue;
    check_against_trace(graph, cluster,
                        simulate(costs, {*placement, std::nullopt}, {.record_memory = true}));
  }
}

// a (10 ns, 100 bytes) on gpu:0 -> b on gpu:1; latency 1 ns, 100 bytes take 5 ns more.
TEST_CASE("plan facts: an operator that waits for a transfer says which, and where the time went") {
  OpGraphBuilder builder("wait");
  const OpId a = builder.add_operator({.name = "a"});
  const OpId b = builder.add_operator({.name = "b"});
  builder.set_time(a, kAnyKind, Time(10));
  builder.set_time(b, kAnyKind, Time(3));
  builder.connect(builder.add_output(a, Bytes(100)), b);
  const OpGraph graph = std::move(builder).build();
  const Cluster cluster =
      testing::equal_devices(2, Bytes(1000), Time(1), Bandwidth(20'000'000'000));
  const CostModel costs(graph, cluster);
  const Trace trace = simulate(costs, {{DeviceId(0), DeviceId(1)}, std::nullopt});
  const PlanFacts facts = plan_facts(graph, plan_from(graph, cluster, trace));
  CHECK(facts.waits.last_input[b].ready == Time(16));
  CHECK(facts.waits.last_input[b].transfer == 0);
  CHECK(!facts.waits.last_input[a].op.has_value());
  CHECK(facts.waits.idle[DeviceId(0)].after == Time(9));
  const IdleTime& idle = facts.waits.idle[DeviceId(1)];
  CHECK(idle.elsewhere == Time(10));
  CHECK(idle.moving == Time(6));
  CHECK(idle.after == Time(0));
  REQUIRE(facts.peaks[DeviceId(1)].holders.size() == 1);
  CHECK(facts.peaks[DeviceId(1)].holders[0].use == MemoryUse::kCopy);
  CHECK(facts.peaks[DeviceId(1)].holders[0].op == a);
  CHECK(facts.path.links.size() == 3);
}

TEST_CASE("plan facts: a schedule that breaks rules is told, not refused") {
  const OpGraph graph = testing::fork_join(3, Time(10), Bytes(100));
  const Cluster cluster = testing::unit_latency_cluster(2, Bytes(10'000));
  const CostModel costs(graph, cluster);
  Placement placement(graph.num_ops(), DeviceId(0));
  placement[OpId(1)] = DeviceId(1);
  Trace trace = simulate(costs, {placement, std::nullopt});
  trace.schedule.transfers.clear();
  const PlanFacts facts = plan_facts(graph, plan_from(graph, cluster, trace));
  CHECK(!facts.broken.empty());
}

TEST_CASE("thinned curve: no peak is lost and few points are left") {
  MemoryCurve curve;
  for (std::int64_t i = 0; i < 10'000; ++i) curve.push_back({Time(i), Bytes(i % 100)});
  curve[7'777].bytes = Bytes(5'000);
  const MemoryCurve thin = thinned(curve, Time(10'000), 100);
  CHECK(thin.size() <= 101);
  Bytes most;
  for (const MemoryPoint& point : thin) most = std::max(most, point.bytes);
  CHECK(most == Bytes(5'000));
  CHECK(thinned(thin, Time(10'000), 101) == thin);
}

TEST_CASE("timeline bars: every operator is in one bar, however few bars there may be") {
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    CAPTURE(seed);
    Random random(seed);
    testing::RandomDag limits;
    limits.min_ops = 60;
    limits.max_ops = 120;
    const OpGraph graph = testing::random_dag(seed, limits);
    const Cluster cluster = testing::unit_latency_cluster(2, Bytes(1'000'000));
    const CostModel costs(graph, cluster);
    const Placement placement = *testing::random_placement(costs, random);
    const Schedule schedule = simulate(costs, {placement, std::nullopt}).schedule;
    const DeviceOrder order = order_of(schedule, graph, 2);
    for (const std::size_t most : {std::size_t{1000}, std::size_t{40}}) {
      const auto bars = timeline_bars(schedule, order, most);
      std::size_t ops = 0, count = 0;
      for (const DeviceId device : bars.keys()) {
        Time busy, end;
        for (const TimelineBar& bar : bars[device]) {
          CHECK(bar.start >= end);
          end = bar.end;
          busy += bar.busy;
          ops += bar.count;
          ++count;
        }
        Time expected;
        for (const OpId op : order[device])
          expected += schedule.slots[op].end - schedule.slots[op].start;
        CHECK(busy == expected);
      }
      CHECK(ops == graph.num_ops());
      CHECK(count <= most);
    }
  }
}

TEST_CASE("longest transfers: those and no others, in the schedule's order") {
  Schedule schedule;
  for (const int time : {3, 9, 1, 9, 5})
    schedule.transfers.push_back(
        {TensorId(0), DeviceId(0), DeviceId(1), Time(0), Time(0), Time(time)});
  CHECK(longest_transfers(schedule, 3) == std::vector<std::size_t>{1, 3, 4});
  CHECK(longest_transfers(schedule, 9).size() == 5);
}

}  // namespace
}  // namespace baechi
