// SPDX-License-Identifier: Apache-2.0
#include "baechi/report/facts/bubbles.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "baechi/graph/op_graph_builder.h"
#include "baechi/simulate/execution_simulator.h"
#include "unit/graphs.h"
#include "unit/place/pipeline_graphs.h"
#include "unit/simulate/random_placement.h"
#include "unit/simulate/small_clusters.h"

namespace baechi::testing {
namespace {

constexpr auto kFill = BubbleCause::kFill, kDrain = BubbleCause::kDrain,
               kImbalance = BubbleCause::kImbalance, kTransfers = BubbleCause::kTransfers,
               kMemory = BubbleCause::kMemory;

// Layer i of the graph on device i, in these orders: "F0 F1 B0" names passes of micro-batches.
Schedule in_orders(const Unrolled& step, const Cluster& cluster,
                   const std::vector<std::string>& orders) {
  const CostModel costs(step.graph, cluster);
  PlacedGraph placed{Placement(step.graph.num_ops(), DeviceId(0)), DeviceOrder(orders.size())};
  for (std::size_t i = 0; i < orders.size(); ++i) {
    const DeviceId device(static_cast<std::uint32_t>(i));
    for (std::size_t at = 0; at < orders[i].size(); at += 3) {
      const char* pass = orders[i][at] == 'F' ? "/f@" : "/b@";
      const OpId op = *step.graph.find("layers/" + std::to_string(i) + pass + orders[i][at + 1]);
      placed.device[op] = device;
      (*placed.order)[device].push_back(op);
    }
  }
  return simulate(costs, placed).schedule;
}

// Sums are those of the parts, and the parts are what the device does not compute.
void check_exact(const Unrolled& step, const Cluster& cluster, const Schedule& schedule,
                 const IdVector<DeviceId, DeviceBubbles>& told) {
  const DeviceOrder order = order_of(schedule, step.graph, cluster.num_devices());
  for (const DeviceId device : order.keys()) {
    CAPTURE(device.value());
    std::vector<std::pair<Time, Time>> spans;  // of runs and bubbles
    Time busy;
    for (const OpId op : order[device]) {
      const OpSlot& slot = schedule.slots[op];
      busy += slot.end - slot.start;
      if (slot.end > slot.start) spans.emplace_back(slot.start, slot.end);
    }
    std::array<Time, kBubbleCauses.size()> total = {};
    for (const Bubble& bubble : told[device].bubbles) {
      REQUIRE(bubble.end > bubble.start);
      spans.emplace_back(bubble.start, bubble.end);
      total[static_cast<std::size_t>(bubble.cause)] += bubble.end - bubble.start;
    }
    REQUIRE(total == told[device].total);
    REQUIRE(told[device].idle() == schedule.makespan - busy);
    std::sort(spans.begin(), spans.end());
    Time at;
    for (const auto& [start, end] : spans) {  // each begins where the one before ends
      REQUIRE(start == at);
      at = end;
    }
    REQUIRE(at == schedule.makespan);
  }
}

TEST_CASE("bubbles: of 1F1B on equal stages all is fill and drain") {
  const OpGraph graph = training(Layers{.forward = {1, 1}, .split = false, .kept = Bytes(0)});
  const Unrolled step = unroll(graph, 3);
  const Cluster cluster = byte_per_ns(2, CommunicationMode::kDuplex);
  const Schedule schedule = in_orders(step, cluster, {"F0 F1 B0 F2 B1 B2", "F0 B0 F1 B1 F2 B2"});
  REQUIRE(schedule.makespan == Time(12));
  const auto told = find_bubbles(step, cluster, schedule);
  CHECK(told[kGpu0].bubbles ==
        std::vector<Bubble>{{Time(2), Time(4), kFill}, {Time(9), Time(10), kDrain}});
  CHECK(told[kGpu1].bubbles ==
        std::vector<Bubble>{{Time(0), Time(1), kFill}, {Time(10), Time(12), kDrain}});
  check_exact(step, cluster, schedule, told);
}

// The second stage takes three times as long: however many micro-batches, the first one waits for
// it, and more than one round trip of that is not the end of the pipeline.
TEST_CASE("bubbles: a fast stage waits for a slow one") {
  const OpGraph graph = training(Layers{.forward = {1, 3}, .split = false, .kept = Bytes(0)});
  const Unrolled step = unroll(graph, 4);
  const Cluster cluster = byte_per_ns(2, CommunicationMode::kDuplex);
  const Schedule schedule =
      in_orders(step, cluster, {"F0 F1 F2 F3 B0 B1 B2 B3", "F0 F1 F2 F3 B0 B1 B2 B3"});
  const auto told = find_bubbles(step, cluster, schedule);
  // The slow stage: F 1-13, B 13-37. The fast one: F 0-4, B at 19, 25, 31 and 37.
  REQUIRE(schedule.makespan == Time(39));
  CHECK(told[kGpu1].bubbles ==
        std::vector<Bubble>{{Time(0), Time(1), kFill}, {Time(37), Time(39), kDrain}});
  CHECK(told[kGpu0].bubbles == std::vector<Bubble>{{Time(4), Time(19), kFill},
                                                   {Time(21), Time(25), kImbalance},
                                                   {Time(27), Time(28), kImbalance},
                                                   {Time(28), Time(31), kDrain},
                                                   {Time(33), Time(37), kDrain}});
  check_exact(step, cluster, schedule, told);
}

// Every tensor of 4 bytes takes 4 between the stages, more than a pass.
TEST_CASE("bubbles: what comes over a link that is slower than the stages is waited for") {
  const OpGraph graph = training(Layers{.forward = {1, 1}, .split = false, .kept = Bytes(4)});
  const Unrolled step = unroll(graph, 4);
  const Cluster cluster = byte_per_ns(2, CommunicationMode::kDuplex);
  const Schedule schedule =
      in_orders(step, cluster, {"F0 F1 F2 F3 B0 B1 B2 B3", "F0 F1 F2 F3 B0 B1 B2 B3"});
  const auto told = find_bubbles(step, cluster, schedule);
  CHECK(told[kGpu1].of(kTransfers) == Time(9));  // F1, F2 and F3 come 4 apart and take 1
  CHECK(told[kGpu1].of(kImbalance) == Time(0));
  CHECK(told[kGpu1].of(kFill) == Time(5));
  check_exact(step, cluster, schedule, told);
}

// The first stage keeps the output of every micro-batch until it is back. With room for two it
// cannot begin a third one while it waits.
TEST_CASE("bubbles: what has no room is told apart from what is not there") {
  const OpGraph graph = training(Layers{.forward = {2, 2}, .split = false, .kept = Bytes(100)});
  const Unrolled step = unroll(graph, 4);
  ClusterSpec spec = byte_per_ns(2, CommunicationMode::kDuplex, Time(0), Bytes(250)).spec();
  spec.links.front().bandwidth.reset();
  const std::vector<std::string> orders{"F0 B0 F1 B1 F2 B2 F3 B3", "F0 B0 F1 B1 F2 B2 F3 B3"};
  const Cluster tight(spec);
  const Schedule schedule = in_orders(step, tight, orders);
  const auto told = find_bubbles(step, tight, schedule);
  REQUIRE(schedule.makespan == Time(48));
  CHECK(told[kGpu0].of(kMemory) == Time(18));  // F1, F2, then F3 could run meanwhile
  CHECK(told[kGpu0].of(kDrain) == Time(6));
  for (Device& device : spec.devices) device.capacity = Bytes(1000);
  const Cluster ample(spec);
  const auto free = find_bubbles(step, ample, in_orders(step, ample, orders));
  CHECK(free[kGpu0].of(kMemory) == Time(0));
  CHECK(free[kGpu0].of(kFill) == Time(6));
  CHECK(free[kGpu0].of(kImbalance) == Time(12));
  check_exact(step, tight, schedule, told);
}

// The first stage is ahead of the second, which takes three times as long: it has no room for the
// last micro-batch before it needs to run it, and would gain nothing by it.
TEST_CASE("bubbles: what has no room but is early all the same is no lack of memory") {
  const OpGraph graph = training(Layers{.forward = {1, 3}, .split = false, .kept = Bytes(100)});
  const Unrolled step = unroll(graph, 4);
  ClusterSpec spec = byte_per_ns(2, CommunicationMode::kDuplex, Time(0), Bytes(250)).spec();
  spec.links.front().bandwidth.reset();
  const Cluster tight(spec);
  const Schedule schedule =
      in_orders(step, tight, {"F0 F1 B0 F2 B1 F3 B2 B3", "F0 B0 F1 B1 F2 B2 F3 B3"});
  const auto told = find_bubbles(step, tight, schedule);
  CHECK(told[kGpu0].bubbles == std::vector<Bubble>{{Time(2), Time(10), kFill},
                                                   {Time(13), Time(19), kImbalance},
                                                   {Time(22), Time(28), kImbalance},
                                                   {Time(30), Time(37), kDrain}});
  check_exact(step, tight, schedule, told);
}

// There and back in a V: layers 0 and 2 on the first device, which waits for its micro-batches twice.
TEST_CASE("bubbles: a device waits for its own micro-batch between its stages") {
  const OpGraph graph = training(Layers{.forward = {1, 2, 1}, .split = false, .kept = Bytes(0)});
  const Unrolled step = unroll(graph, 2);
  const Cluster cluster = byte_per_ns(2, CommunicationMode::kDuplex);
  PlacedGraph placed{Placement(step.graph.num_ops(), kGpu0), DeviceOrder(2)};
  const auto run = [&](DeviceId device, const std::vector<std::string>& names) {
    for (const std::string& name : names) {
      const OpId op = *step.graph.find("layers/" + name);
      placed.device[op] = device;
      (*placed.order)[device].push_back(op);
    }
  };
  run(kGpu0, {"0/f@0", "0/f@1", "2/f@0", "2/f@1", "2/b@0", "2/b@1", "0/b@0", "0/b@1"});
  run(kGpu1, {"1/f@0", "1/f@1", "1/b@0", "1/b@1"});
  const Schedule schedule = simulate(CostModel(step.graph, cluster), placed).schedule;
  const auto told = find_bubbles(step, cluster, schedule);
  CHECK(told[kGpu0].bubbles == std::vector<Bubble>{{Time(2), Time(3), kFill},
                                                   {Time(4), Time(5), kImbalance},
                                                   {Time(10), Time(12), kFill},
                                                   {Time(14), Time(16), kDrain}});
  CHECK(told[kGpu1].bubbles == std::vector<Bubble>{{Time(0), Time(1), kFill},
                                                   {Time(5), Time(8), kFill},
                                                   {Time(16), Time(18), kDrain}});
  check_exact(step, cluster, schedule, told);
}

TEST_CASE("bubbles: a device that runs nothing lacks work, not time") {
  const OpGraph graph = training(Layers{.forward = {1}, .split = false});
  const Unrolled step = unroll(graph, 2);
  const Cluster cluster = byte_per_ns(2, CommunicationMode::kDuplex);
  const Schedule schedule = in_orders(step, cluster, {"F0 B0 F1 B1", ""});
  const auto told = find_bubbles(step, cluster, schedule);
  CHECK(told[kGpu0].bubbles.empty());
  CHECK(told[kGpu1].of(kImbalance) == schedule.makespan);
}

TEST_CASE("bubbles: on random steps every idle moment has one cause") {
  std::array<std::size_t, kBubbleCauses.size()> seen = {};
  for (std::uint64_t seed = 0; seed < 400; ++seed) {
    CAPTURE(seed);
    const OpGraph graph = random_dag(seed, {.min_ops = 3,
                                            .max_ops = 14,
                                            .group_chance = seed % 3 == 0 ? 0.3 : 0.0,
                                            .backward_chance = 0.5});
    const Unrolled step = unroll(graph, 2 + seed % 4);
    ClusterSpec spec = random_cluster(seed, Bytes(seed % 2 == 0 ? 100 : 1'000'000)).spec();
    if (seed % 3 == 1) spec.sends = Sends::kBlocking;
    const Cluster cluster(std::move(spec));
    const CostModel costs(step.graph, cluster);
    Random random(seed);
    const std::optional<Placement> placement = random_placement(costs, random);
    if (!placement.has_value()) continue;
    PlacedGraph placed{*placement, std::nullopt};
    if (seed % 4 < 2) placed.order = random_order(costs, *placement, random);
    const Schedule schedule = simulate(costs, placed).schedule;
    const auto told = find_bubbles(step, cluster, schedule);
    check_exact(step, cluster, schedule, told);
    IdVector<DeviceId, Time> sending(cluster.num_devices());
    for (const Transfer& transfer : schedule.transfers)
      sending[transfer.from] += transfer.end - transfer.start;
    for (const DeviceId device : cluster.devices())
      if (cluster.sends_block())
        REQUIRE(told[device].of(BubbleCause::kTransfers) >= sending[device]);
    for (const DeviceBubbles& device : told)
      for (std::size_t cause = 0; cause < seen.size(); ++cause)
        seen[cause] += device.total[cause] > Time(0);
  }
  for (std::size_t cause = 0; cause < seen.size(); ++cause) {
    CAPTURE(std::string(kBubbleCauses[cause]));
    CHECK(seen[cause] > 10);
  }
}

}  // namespace
}  // namespace baechi::testing
