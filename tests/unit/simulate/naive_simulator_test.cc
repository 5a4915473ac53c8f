// SPDX-License-Identifier: Apache-2.0
#include "unit/simulate/naive_simulator.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>

#include "baechi/base/error.h"
#include "baechi/base/random.h"
#include "baechi/schedule/execution_order.h"
#include "baechi/simulate/execution_simulator.h"
#include "baechi/simulate/simulator.h"
#include "unit/graphs.h"
#include "unit/simulate/random_placement.h"

namespace baechi::testing {
namespace {

// What differs first, in words; empty when nothing does.
std::string difference(const Trace& a, const Trace& b) {
  if (a.schedule.makespan != b.schedule.makespan) return "makespan";
  if (a.schedule.asked != b.schedule.asked) return "when is asked";
  if (a.schedule.slots != b.schedule.slots) return "slots";
  if (a.schedule.transfers != b.schedule.transfers) return "transfers";
  if (a.devices.size() != b.devices.size()) return "number of devices";
  for (const DeviceId device : a.devices.keys()) {
    const DeviceTrace &x = a.devices[device], &y = b.devices[device];
    const std::string where = " of device " + std::to_string(device.index());
    if (x.peak != y.peak) return "peak" + where;
    if (x.peak_at != y.peak_at) return "moment of the peak" + where;
    if (x.peak_op != y.peak_op) return "operator at the peak" + where;
    if (x.overflow_at != y.overflow_at) return "moment of overflow" + where;
    if (x.busy != y.busy) return "busy time" + where;
    if (x.sent != y.sent || x.received != y.received) return "traffic" + where;
    if (x.memory != y.memory) return "memory curve" + where;
  }
  return a == b ? "" : "something";
}

TEST_CASE("simulate: equals a replay that looks at everything at every nanosecond") {
  std::size_t compared = 0, waits = 0, cached = 0, overflows = 0;
  for (std::uint64_t seed = 0; seed < 6000; ++seed) {
    CAPTURE(seed);
    Random random(seed ^ 0x5eed);
    const OpGraph graph = random_dag(seed, varied_limits(random));
    const Cluster cluster = varied_cluster(seed, random);
    const CostModel costs(graph, cluster);
    const std::optional<Placement> placement = random_placement(costs, random);
    if (!placement.has_value()) continue;

    PlacedGraph placed{*placement, std::nullopt};
    if (random.chance(0.6)) placed.order = random_order(costs, *placement, random);
    const Trace trace = simulate(costs, placed, {.record_memory = true});
    const std::optional<Trace> naive = naive_simulate(costs, placed);
    REQUIRE(naive.has_value());
    REQUIRE(difference(trace, *naive) == "");

    ++compared;
    for (const Transfer& transfer : trace.schedule.transfers) {
      if (transfer.start > transfer.requested) ++waits;
      if (graph.consumers(transfer.tensor).size() > 1) ++cached;
    }
    if (find_overflow(trace, cluster).has_value()) ++overflows;
  }
  // The instances are worth it: things wait, are shared and run over.
  CHECK(compared > 5000);
  CHECK(waits > 5000);
  CHECK(cached > 5000);
  CHECK(overflows > 500);
}

TEST_CASE("simulate: a host that takes time to ask is that of the naive replay") {
  std::size_t compared = 0, late = 0;
  for (std::uint64_t seed = 0; seed < 1500; ++seed) {
    CAPTURE(seed);
    Random random(seed ^ 0xa5cull);
    const OpGraph graph = random_dag(seed, varied_limits(random));
    ClusterSpec spec = varied_cluster(seed, random).spec();
    for (Device& device : spec.devices)
      if (random.chance(0.3)) device.host = "other";
    spec.host_time = HostTime{Time(random.between(0, 6)), Time(random.between(0, 6)),
                              Time(random.between(0, 9))};
    const Cluster cluster(std::move(spec));
    const CostModel costs(graph, cluster);
    const std::optional<Placement> placement = random_placement(costs, random);
    if (!placement.has_value()) continue;
    PlacedGraph placed{*placement, std::nullopt};
    if (random.chance(0.6)) placed.order = random_order(costs, *placement, random);
    if (random.chance(0.3))
      placed =
          as_executed(std::move(placed), ExecutionOrder::kProgram, graph, cluster.num_devices());
    const Trace trace = simulate(costs, placed, {.record_memory = true});
    const std::optional<Trace> naive = naive_simulate(costs, placed);
    REQUIRE(naive.has_value());
    REQUIRE(difference(trace, *naive) == "");
    ++compared;
    for (const OpId op : graph.ops())
      if (trace.schedule.asked[op] == trace.schedule.slots[op].start) ++late;
  }
  CHECK(compared > 1000);
  CHECK(late > 1000);
}

TEST_CASE("simulate: an arbitrary order either replays as the naive way or is said to be stuck") {
  std::size_t stuck = 0, replayed = 0;
  for (std::uint64_t seed = 0; seed < 2000; ++seed) {
    CAPTURE(seed);
    Random random(seed ^ 0xdead);
    RandomDag limits = varied_limits(random);
    limits.edge_chance = 0.15;
    const OpGraph graph = random_dag(seed, limits);
    const Cluster cluster = varied_cluster(seed, random);
    const CostModel costs(graph, cluster);
    const std::optional<Placement> placement = random_placement(costs, random);
    if (!placement.has_value()) continue;

    PlacedGraph placed{*placement, random_order(costs, *placement, random)};
    for (int swaps = 0; swaps < 2; ++swaps)
      for (const DeviceId device : placed.order->keys()) {
        std::vector<OpId>& ops = (*placed.order)[device];
        if (ops.size() > 1) std::swap(ops[random.below(ops.size())], ops[random.below(ops.size())]);
      }
    const std::optional<Trace> naive = naive_simulate(costs, placed);
    if (naive.has_value()) {
      REQUIRE(difference(simulate(costs, placed, {.record_memory = true}), *naive) == "");
      ++replayed;
    } else {
      REQUIRE_THROWS_AS(simulate(costs, placed), InputError);
      ++stuck;
    }
  }
  CHECK(stuck > 300);
  CHECK(replayed > 300);
}

TEST_CASE("simulate: one Simulator replays one placement after the other as fresh ones do") {
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    CAPTURE(seed);
    Random random(seed ^ 0xcafe);
    const OpGraph graph = random_dag(seed, varied_limits(random));
    const Cluster cluster = varied_cluster(seed, random);
    const CostModel costs(graph, cluster);
    Simulator simulator(costs);
    for (int run = 0; run < 6; ++run) {
      CAPTURE(run);
      const std::optional<Placement> placement = random_placement(costs, random);
      if (!placement.has_value()) break;
      PlacedGraph placed{*placement, std::nullopt};
      if (random.chance(0.5)) placed.order = random_order(costs, *placement, random);
      const Trace fresh = simulate(costs, placed, {.record_memory = true});

      REQUIRE(simulator.makespan(placed) == fresh.schedule.makespan);
      REQUIRE(simulator.slots() == fresh.schedule.slots);
      const StepSummary& summary = simulator.run(placed);
      REQUIRE(summary.makespan == fresh.schedule.makespan);
      REQUIRE(simulator.slots() == fresh.schedule.slots);
      for (const DeviceId device : cluster.devices())
        REQUIRE(summary.peaks[device] == fresh.devices[device].peak);
      REQUIRE(difference(simulator.trace(placed, {.record_memory = true}), fresh) == "");

      PlacedGraph stuck = placed;  // a failed run leaves nothing behind
      stuck.order = random_order(costs, *placement, random);
      for (std::vector<OpId>& ops : *stuck.order) std::reverse(ops.begin(), ops.end());
      try {
        simulator.run(stuck);
      } catch (const InputError&) {
      }
    }
  }
}

TEST_CASE("simulate: a step takes at least its longest path and at least every device's work") {
  for (std::uint64_t seed = 0; seed < 500; ++seed) {
    CAPTURE(seed);
    Random random(seed);
    const OpGraph graph = random_dag(seed, varied_limits(random));
    const Cluster cluster = varied_cluster(seed, random);
    const CostModel costs(graph, cluster);
    const std::optional<Placement> placement = random_placement(costs, random);
    if (!placement.has_value()) continue;
    const Trace trace = simulate(costs, {*placement, std::nullopt});

    IdVector<OpId, Time> path(graph.num_ops());  // up to and including the operator
    Time longest;
    for (const OpId op : graph.topological_order()) {
      for (const Edge& edge : graph.in_edges(op)) path[op] = std::max(path[op], path[edge.from]);
      path[op] += *costs.compute_time(op, (*placement)[op]);
      longest = std::max(longest, path[op]);
    }
    CHECK(trace.schedule.makespan >= longest);
    for (const DeviceTrace& device : trace.devices) CHECK(trace.schedule.makespan >= device.busy);
  }
}

}  // namespace
}  // namespace baechi::testing
