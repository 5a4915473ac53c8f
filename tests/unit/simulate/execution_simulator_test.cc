// SPDX-License-Identifier: Apache-2.0
#include "baechi/simulate/execution_simulator.h"

#include <doctest/doctest.h>

#include <optional>
#include <string>
#include <vector>

#include "baechi/base/error.h"
#include "baechi/simulate/simulator.h"
#include "unit/graph_sketch.h"
#include "unit/graphs.h"
#include "unit/simulate/small_clusters.h"

namespace baechi::testing {
namespace {

Trace replay(const OpGraph& graph, const Cluster& cluster, const PlacedGraph& placed) {
  return simulate(CostModel(graph, cluster), placed, {.record_memory = true});
}

OpSlot slot(const Trace& trace, const OpGraph& graph, std::string_view op) {
  return trace.schedule.slots[op_named(graph, op)];
}

// Paper Figure 1, one time unit per transfer.
//   gpu:0  a 0-1, b 1-4, c 4-7, d 7-8 (f's output arrives at 7)
//   gpu:1  a's output arrives at 2: e 2-5, f 5-6
TEST_CASE("simulate: figure 1 takes 8 time units with e and f on their own device") {
  const OpGraph graph = figure_1();
  const Cluster cluster = unit_latency_cluster(2, Bytes(100));
  const PlacedGraph placed = in_order(graph, {{"a", "b", "c", "d"}, {"e", "f"}});
  const Trace trace = replay(graph, cluster, placed);

  CHECK(trace.schedule.makespan == Time(8));
  CHECK(slot(trace, graph, "a") == OpSlot{kGpu0, Time(0), Time(1)});
  CHECK(slot(trace, graph, "b") == OpSlot{kGpu0, Time(1), Time(4)});
  CHECK(slot(trace, graph, "c") == OpSlot{kGpu0, Time(4), Time(7)});
  CHECK(slot(trace, graph, "d") == OpSlot{kGpu0, Time(7), Time(8)});
  CHECK(slot(trace, graph, "e") == OpSlot{kGpu1, Time(2), Time(5)});
  CHECK(slot(trace, graph, "f") == OpSlot{kGpu1, Time(5), Time(6)});
  REQUIRE(trace.schedule.transfers.size() == 2);
  CHECK(trace.schedule.transfers[0] ==
        Transfer{TensorId(0), kGpu0, kGpu1, Time(1), Time(1), Time(2)});
  CHECK(trace.schedule.transfers[1] ==
        Transfer{TensorId(4), kGpu1, kGpu0, Time(6), Time(6), Time(7)});

  // Without an order the same happens here.
  CHECK(replay(graph, cluster, {placed.device, std::nullopt}) == trace);
}

TEST_CASE("simulate: one device takes the sum of all times, with and without an order") {
  const OpGraph graph = chain({Time(3), Time(5), Time(0), Time(7)}, Bytes(1));
  const Cluster cluster = byte_per_ns(1, CommunicationMode::kSequential);
  for (const PlacedGraph& placed :
       {in_order(graph, {{"a", "b", "c", "d"}}), in_any_order(graph, {{"a", "b", "c", "d"}})}) {
    const Trace trace = replay(graph, cluster, placed);
    CHECK(trace.schedule.makespan == Time(15));
    CHECK(trace.devices[kGpu0].busy == Time(15));
    CHECK(trace.schedule.transfers.empty());
  }
}

// gpu:0 finishes a at 2 and sends c 3 bytes, then e 1 byte, to gpu:1; gpu:1 finishes b at 2 and
// sends d 4 bytes to gpu:0. Tensor ids are in this order.
TEST_CASE(
    "simulate: parallel transfers never wait, sequential ones share one queue per device, "
    "duplex ones have one each way") {
  const OpGraph graph = GraphSketch()
                            .ops({{"a", 2}, {"b", 2}, {"c", 1}, {"d", 1}, {"e", 1}})
                            .tensors({{"a", 3, {"c"}}, {"a", 1, {"e"}}, {"b", 4, {"d"}}})
                            .build();
  const PlacedGraph placed = in_order(graph, {{"a", "d"}, {"b", "c", "e"}});
  const auto starts_and_ends = [&](CommunicationMode mode) {
    std::vector<std::int64_t> times;
    for (const Transfer& transfer :
         replay(graph, byte_per_ns(2, mode), placed).schedule.transfers) {
      CHECK(transfer.requested == Time(2));
      times.push_back(transfer.start.count());
      times.push_back(transfer.end.count());
    }
    return times;
  };

  CHECK(starts_and_ends(CommunicationMode::kParallel) ==
        std::vector<std::int64_t>{2, 5, 2, 3, 2, 6});
  CHECK(starts_and_ends(CommunicationMode::kSequential) ==
        std::vector<std::int64_t>{2, 5, 5, 6, 6, 10});
  CHECK(starts_and_ends(CommunicationMode::kDuplex) == std::vector<std::int64_t>{2, 5, 5, 6, 2, 6});
}

// a (done at 1) occupies gpu:0 and gpu:1 until 11. b (done at 2) waits for gpu:1 and holds gpu:2's
// place meanwhile. c (done at 3) finds gpu:2 and gpu:3 idle, but b came first: 16, not 3.
TEST_CASE("simulate: queues are first come, first served, and nobody overtakes") {
  const OpGraph graph = GraphSketch()
                            .ops({{"a", 1}, {"b", 2}, {"c", 3}, {"x", 1}, {"y", 1}, {"z", 1}})
                            .tensors({{"a", 10, {"x"}}, {"b", 5, {"y"}}, {"c", 1, {"z"}}})
                            .build();
  const PlacedGraph placed = in_order(graph, {{"a"}, {"b", "x"}, {"c", "y"}, {"z"}});
  const Trace trace = replay(graph, byte_per_ns(4, CommunicationMode::kSequential), placed);
  REQUIRE(trace.schedule.transfers.size() == 3);
  CHECK(trace.schedule.transfers[0] ==
        Transfer{TensorId(0), kGpu0, kGpu1, Time(1), Time(1), Time(11)});
  CHECK(trace.schedule.transfers[1] ==
        Transfer{TensorId(1), kGpu1, kGpu2, Time(2), Time(11), Time(16)});
  CHECK(trace.schedule.transfers[2] ==
        Transfer{TensorId(2), kGpu2, kGpu3, Time(3), Time(16), Time(17)});
  CHECK(trace.schedule.makespan == Time(18));
}

// Two transfers between different pairs of devices, both requested at 1, over one bus.
TEST_CASE("simulate: a shared channel carries one transfer at a time, except in parallel mode") {
  const OpGraph graph = GraphSketch()
                            .ops({{"a", 1}, {"b", 1}, {"x", 1}, {"y", 1}})
                            .tensors({{"a", 4, {"x"}}, {"b", 2, {"y"}}})
                            .build();
  const PlacedGraph placed = in_order(graph, {{"a"}, {"x"}, {"b"}, {"y"}});
  const auto makespan = [&](CommunicationMode mode, bool shared) {
    ClusterSpec spec = byte_per_ns(4, mode).spec();
    if (shared) spec.links[0].channels = {"bus"};
    return replay(graph, Cluster(spec), placed).schedule.makespan;
  };
  CHECK(makespan(CommunicationMode::kDuplex, false) == Time(6));  // x: 1 + 4 + 1
  CHECK(makespan(CommunicationMode::kDuplex, true) == Time(8));   // y: 1 + 4 + 2 + 1
  CHECK(makespan(CommunicationMode::kSequential, false) == Time(6));
  CHECK(makespan(CommunicationMode::kSequential, true) == Time(8));
  CHECK(makespan(CommunicationMode::kParallel, true) == Time(6));
}

// a's second output goes to gpu:2 and gpu:1, its first one to gpu:2; all are requested at 1.
TEST_CASE("simulate: requests of one moment are served by tensor, then by destination") {
  const OpGraph graph = GraphSketch()
                            .ops({{"a", 1}, {"x", 1}, {"y", 1}, {"z", 1}})
                            .tensors({{"a", 3, {"z"}}, {"a", 2, {"x", "y"}}})
                            .build();
  const PlacedGraph placed = in_order(graph, {{"a"}, {"y"}, {"x", "z"}});
  const Trace trace = replay(graph, byte_per_ns(3, CommunicationMode::kDuplex), placed);
  REQUIRE(trace.schedule.transfers.size() == 3);
  CHECK(trace.schedule.transfers[0] ==
        Transfer{TensorId(0), kGpu0, kGpu2, Time(1), Time(1), Time(4)});
  CHECK(trace.schedule.transfers[1] ==
        Transfer{TensorId(1), kGpu0, kGpu1, Time(1), Time(4), Time(6)});
  CHECK(trace.schedule.transfers[2] ==
        Transfer{TensorId(1), kGpu0, kGpu2, Time(1), Time(6), Time(8)});
}

TEST_CASE("simulate: a tensor is sent to a device once, however many of its operators read it") {
  const OpGraph graph = fork_join(3, Time(2), Bytes(5));
  const PlacedGraph placed = in_order(graph, {{"src", "m0", "sink"}, {"m1", "m2"}});
  const Trace trace = replay(graph, byte_per_ns(2, CommunicationMode::kSequential), placed);
  // src 0-2, its copy 2-7; m1 7-9 sends 9-14, m2 9-11 sends 14-19; sink 19-21.
  CHECK(trace.schedule.transfers.size() == 3);
  CHECK(slot(trace, graph, "m1").start == Time(7));
  CHECK(slot(trace, graph, "m2").start == Time(9));
  CHECK(trace.schedule.makespan == Time(21));
  CHECK(trace.devices[kGpu0].sent == Bytes(5));
  CHECK(trace.devices[kGpu0].received == Bytes(10));
  CHECK(trace.devices[kGpu1].sent == Bytes(10));
  CHECK(trace.devices[kGpu1].received == Bytes(5));
  CHECK(trace.devices[kGpu0].busy == Time(6));
  CHECK(trace.devices[kGpu1].busy == Time(4));
}

TEST_CASE("simulate: a control edge between devices moves nothing and takes no time") {
  const OpGraph graph = GraphSketch().op("a", 4).op("b", 3).control("a", "b").build();
  const Trace trace = replay(graph, byte_per_ns(2, CommunicationMode::kSequential, Time(100)),
                             in_order(graph, {{"a"}, {"b"}}));
  CHECK(slot(trace, graph, "b") == OpSlot{kGpu1, Time(4), Time(7)});
  CHECK(trace.schedule.transfers.empty());
}

TEST_CASE("simulate: zero bytes still take the latency") {
  const OpGraph graph = chain({Time(1), Time(1)}, Bytes(0));
  const Trace trace = replay(graph, byte_per_ns(2, CommunicationMode::kSequential, Time(7)),
                             in_order(graph, {{"a"}, {"b"}}));
  CHECK(trace.schedule.makespan == Time(9));
}

// gpu:0 is busy with "first" until 5. late_id can start from 1, early_id only from 2.
TEST_CASE(
    "simulate: without an order, who has been able to start the longest is next, then the "
    "smallest id") {
  const OpGraph graph =
      GraphSketch()
          .ops({{"first", 5},
                {"early_id", 1},
                {"same_a", 1},
                {"same_b", 1},
                {"late_id", 1},
                {"one", 1},
                {"two", 2}})
          .controls({{"one", "late_id"}, {"two", "early_id"}, {"two", "same_b"}, {"two", "same_a"}})
          .build();
  const Trace trace =
      replay(graph, byte_per_ns(3, CommunicationMode::kParallel),
             in_any_order(
                 graph, {{"first", "early_id", "same_a", "same_b", "late_id"}, {"one"}, {"two"}}));
  CHECK(slot(trace, graph, "late_id").start == Time(5));
  CHECK(slot(trace, graph, "early_id").start == Time(6));
  CHECK(slot(trace, graph, "same_a").start == Time(7));
  CHECK(slot(trace, graph, "same_b").start == Time(8));
}

TEST_CASE(
    "simulate: with an order, a device waits for its next operator though others could start") {
  const OpGraph graph =
      GraphSketch().op("slow", 9).op("waits", 1).op("free", 1).control("slow", "waits").build();
  const Cluster cluster = byte_per_ns(2, CommunicationMode::kParallel);
  const DeviceLists lists{{"slow"}, {"waits", "free"}};
  CHECK(slot(replay(graph, cluster, in_order(graph, lists)), graph, "free").start == Time(10));
  CHECK(slot(replay(graph, cluster, in_any_order(graph, lists)), graph, "free").start == Time(0));
}

// At 2, p and a finish: a asks for its transfer in round 0. z takes no time, starts in round 0 and
// asks in round 1, after a, though its tensor has the smaller id. Both go to gpu:2.
TEST_CASE("simulate: an operator of no length asks for its transfers after those that took time") {
  const OpGraph graph = GraphSketch()
                            .ops({{"z", 0}, {"p", 2}, {"a", 2}, {"reads_z", 1}, {"reads_a", 1}})
                            .control("p", "z")
                            .tensors({{"z", 2, {"reads_z"}}, {"a", 5, {"reads_a"}}})
                            .build();
  const Trace trace = replay(graph, byte_per_ns(4, CommunicationMode::kSequential),
                             in_any_order(graph, {{"a"}, {"p"}, {"reads_z", "reads_a"}, {"z"}}));
  REQUIRE(trace.schedule.transfers.size() == 2);
  CHECK(trace.schedule.transfers[0] ==
        Transfer{TensorId(0), kGpu3, kGpu2, Time(2), Time(7), Time(9)});
  CHECK(trace.schedule.transfers[1] ==
        Transfer{TensorId(1), kGpu0, kGpu2, Time(2), Time(2), Time(7)});
}

// A chain of operators and transfers of no length runs through three devices within moment 3.
TEST_CASE("simulate: any number of operators and transfers of no length happen at one moment") {
  const OpGraph graph = chain({Time(3), Time(0), Time(0), Time(0), Time(4)}, Bytes(0));
  const Trace trace = replay(graph, byte_per_ns(3, CommunicationMode::kSequential),
                             in_order(graph, {{"a", "d"}, {"b", "e"}, {"c"}}));
  CHECK(slot(trace, graph, "d") == OpSlot{kGpu0, Time(3), Time(3)});
  CHECK(slot(trace, graph, "e") == OpSlot{kGpu1, Time(3), Time(7)});
  CHECK(trace.schedule.transfers.size() == 4);
}

TEST_CASE("simulate: devices of other kinds and speeds, and links of their own") {
  OpGraphBuilder builder;
  const OpId a = timed(builder, {.name = "a"}, Time(10)),
             b = timed(builder, {.name = "b"}, Time(7), "*");
  builder.set_time(a, "cpu", Time(70));
  builder.connect(builder.add_output(a, Bytes(6)), b);
  const OpGraph graph = std::move(builder).build();

  ClusterSpec spec = byte_per_ns(2, CommunicationMode::kSequential).spec();
  spec.devices.push_back({"cpu:0", "cpu", Bytes(1000), "localhost", Speed(300'000)});
  LinkRule slow;
  slow.scope = LinkScope::kPair;
  slow.from = "cpu:0";
  slow.to = "gpu:1";
  slow.both_ways = false;
  slow.latency = Time(100);
  slow.bandwidth = Bandwidth(4'000'000'000);  // 6 bytes: ceil(1.5 ns)
  spec.links.push_back(slow);
  const Cluster cluster(spec);

  const auto makespan = [&](const DeviceLists& lists) {
    return replay(graph, cluster, in_order(graph, lists)).schedule.makespan;
  };
  CHECK(makespan({{"a"}, {"b"}, {}}) == Time(10 + 6 + 7));
  CHECK(makespan({{}, {}, {"a", "b"}}) == Time(234 + 24));  // ceil(70 / 0.3) + ceil(7 / 0.3)
  CHECK(makespan({{}, {"b"}, {"a"}}) == Time(234 + 102 + 7));
  CHECK(makespan({{}, {"a"}, {"b"}}) == Time(10 + 6 + 24));  // the way back is as usual
  CHECK(makespan({{"b"}, {}, {"a"}}) == Time(234 + 6 + 7));
}

TEST_CASE("simulate: times beyond 63 bits are the input's fault") {
  const OpGraph graph = chain({Time(std::int64_t{1} << 62), Time(std::int64_t{1} << 62)}, Bytes(0));
  const Cluster cluster = byte_per_ns(1, CommunicationMode::kParallel);
  CHECK_THROWS_AS(replay(graph, cluster, in_order(graph, {{"a", "b"}})), InputError);
}

// On gpu:0, b's memory on top of what a leaves is beyond 63 bits. That shows at 3, when c could
// start there, d is running, and e waits for the 100 bytes of s.
TEST_CASE("simulate: a run that failed half way leaves nothing behind") {
  constexpr std::int64_t kHuge = std::int64_t{1} << 62;
  const OpGraph graph =
      GraphSketch()
          .ops({{"a", 2}, {"b", 1, kHuge}, {"c", 1}, {"d", 9}, {"s", 1}, {"e", 1}})
          .tensors({{"s", 100, {"e"}}, {"a", kHuge, {}}})
          .build();
  const Cluster cluster = byte_per_ns(4, CommunicationMode::kParallel);
  const CostModel costs(graph, cluster);
  const PlacedGraph bad = in_any_order(graph, {{"a", "b", "c", "e"}, {"d"}, {"s"}, {}});
  const DeviceLists lists{{"a", "c"}, {}, {"b", "s", "e"}, {"d"}};
  const Trace fresh = simulate(costs, in_order(graph, lists));

  Simulator simulator(costs);
  CHECK_THROWS_AS(simulator.run(bad), InputError);
  CHECK(simulator.trace(in_any_order(graph, lists)) == fresh);
  CHECK_THROWS_AS(simulator.run(bad), InputError);
  CHECK(simulator.trace(in_order(graph, lists)) == fresh);
}

TEST_CASE("simulate: a request to stop is heard") {
  const OpGraph graph = chain(std::vector<Time>(26, Time(1)), Bytes(1));
  const Cluster cluster = byte_per_ns(1, CommunicationMode::kParallel);
  const CostModel costs(graph, cluster);
  CancelFlag cancel;
  const PlacedGraph placed{Placement(graph.num_ops(), kGpu0), std::nullopt};
  CHECK_NOTHROW(simulate(costs, placed, {.cancel = &cancel}));
  cancel.request();
  CHECK_THROWS_AS(simulate(costs, placed, {.cancel = &cancel}), Cancelled);
}

}  // namespace
}  // namespace baechi::testing
