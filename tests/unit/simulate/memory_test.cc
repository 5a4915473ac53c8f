// SPDX-License-Identifier: Apache-2.0
// What the simulator says about memory, worked out by hand.
#include <doctest/doctest.h>

#include <optional>
#include <vector>

#include "baechi/simulate/execution_simulator.h"
#include "unit/graph_sketch.h"
#include "unit/graphs.h"
#include "unit/simulate/small_clusters.h"

namespace baechi::testing {
namespace {

struct Setting {
  std::size_t devices = 1;
  CommunicationMode mode = CommunicationMode::kSequential;
  Bytes capacity = Bytes(1000);
};

// One byte per nanosecond, no latency.
Trace replay(const OpGraph& graph, const DeviceLists& lists, const Setting& setting = {}) {
  const Cluster cluster = equal_devices(setting.devices, setting.capacity, Time(0),
                                        Bandwidth(1'000'000'000), setting.mode);
  return simulate(CostModel(graph, cluster), in_order(graph, lists), {.record_memory = true});
}

std::vector<MemoryStep> curve(std::initializer_list<std::pair<int, int>> steps) {
  std::vector<MemoryStep> curve;
  for (const auto& [at, bytes] : steps) curve.push_back({Time(at), Bytes(bytes)});
  return curve;
}

//            time  temporary  permanent  output        3 bytes are permanent, and
//   a        0-2       1          1        4           0: a's 1 + 4                      =  8
//   b        2-5       2          1        5           2: a's 4, b's 2 + 5               = 14
//   c        5-6       0          1        3, unread   5: b's 5, c's 3                   = 11
//                                                      6: the step is over               =  3
TEST_CASE("memory: temporary memory and tensors come and go with their operators") {
  const OpGraph graph = GraphSketch()
                            .ops({{"a", 2, 1, 1}, {"b", 3, 2, 1}, {"c", 1, 0, 1}})
                            .tensors({{"a", 4, {"b"}}, {"b", 5, {"c"}}, {"c", 3, {}}})
                            .build();
  const Trace trace = replay(graph, {{"a", "b", "c"}});
  const DeviceTrace& device = trace.devices[kGpu0];
  CHECK(device.memory == curve({{0, 8}, {2, 14}, {5, 11}, {6, 3}}));
  CHECK(device.peak == Bytes(14));
  CHECK(device.peak_at == Time(2));
  CHECK(device.peak_op == op_named(graph, "b"));
}

// a's 9 bytes of temporary memory end at 2, where b's 9 begin: never 18.
TEST_CASE("memory: what ends at a moment is freed before what starts there is taken") {
  const OpGraph graph = GraphSketch().op("a", 2, 9).op("b", 2, 9).build();
  const DeviceTrace device = replay(graph, {{"a", "b"}}).devices[kGpu0];
  CHECK(device.peak == Bytes(9));
  CHECK(device.memory == curve({{0, 9}, {4, 0}}));
}

// a is read by near (gpu:0, until 3) and by far (gpu:1). Its copy waits for w's 6 bytes:
//   w 0-1, sent 1-7; a 1-2, requested at 2, sent 7-11; near 2-3; far 11-12.
//   gpu:0: w 6 from 0 to 7, a 4 from 1 to 11          gpu:1: w's copy from 1, a's copy from 7,
//                                                              both until far has finished
TEST_CASE(
    "memory: a sender holds a tensor until its last transfer ended, a receiver from its start") {
  const OpGraph graph = GraphSketch()
                            .ops({{"w", 1}, {"a", 1}, {"near", 1}, {"far", 1}})
                            .tensors({{"w", 6, {"far"}}, {"a", 4, {"near", "far"}}})
                            .build();
  const Trace trace = replay(graph, {{"w", "a", "near"}, {"far"}}, {.devices = 2});
  CHECK(trace.devices[kGpu0].memory == curve({{0, 6}, {1, 10}, {7, 4}, {11, 0}}));
  CHECK(trace.devices[kGpu1].memory == curve({{0, 0}, {1, 6}, {7, 10}, {12, 0}}));
  CHECK(trace.devices[kGpu1].peak_at == Time(7));
  CHECK(trace.devices[kGpu1].peak_op == std::nullopt);  // nothing runs while it arrives
  CHECK(trace.devices[kGpu0].peak_op == op_named(graph, "a"));
}

// In parallel mode the transfers of one sender end out of order: big (10 bytes) 1-11, small 2-4.
TEST_CASE("memory: transfers that end out of order free their tensors when they end") {
  const OpGraph graph = GraphSketch()
                            .ops({{"big", 1}, {"small", 1}, {"x", 1}, {"y", 1}})
                            .tensors({{"big", 10, {"x"}}, {"small", 2, {"y"}}})
                            .build();
  const Trace trace = replay(graph, {{"big", "small"}, {"y", "x"}},
                             {.devices = 2, .mode = CommunicationMode::kParallel});
  CHECK(trace.devices[kGpu0].memory == curve({{0, 10}, {1, 12}, {4, 10}, {11, 0}}));
  CHECK(trace.devices[kGpu1].memory == curve({{0, 0}, {1, 10}, {2, 12}, {5, 10}, {12, 0}}));
}

TEST_CASE("memory: a copy is held until its last local reader has finished, and once for all") {
  // src 0-2, copy 2-7, m0 7-9, m1 9-11: gpu:1 holds 5 from 2, 10 from 7 (m0's output), 15 from 9
  // (m1's); at 11 the copy goes. m0's output is sent 9-14, m1's 14-19.
  const OpGraph graph = fork_join(2, Time(2), Bytes(5));
  const Trace trace = replay(graph, {{"src", "sink"}, {"m0", "m1"}}, {.devices = 2});
  CHECK(trace.devices[kGpu1].memory ==
        curve({{0, 0}, {2, 5}, {7, 10}, {9, 15}, {11, 10}, {14, 5}, {19, 0}}));
}

// f 0-1, g 1-2 forward, b 2-3, c 3-4 backward; each passes 4 bytes on.
TEST_CASE("memory: retain keeps forward outputs and their copies until the step ends") {
  const auto sketch = [](MemoryMode mode) {
    return GraphSketch()
        .ops({{"f", 1}, {"g", 1}, {"b", 1}, {"c", 1}})
        .tensors({{"f", 4, {"g"}}, {"g", 4, {"b"}}, {"b", 4, {"c"}}})
        .backwards({"b", "c"})
        .memory_mode(mode)
        .build();
  };
  const OpGraph dataflow = sketch(MemoryMode::kDataflow), retain = sketch(MemoryMode::kRetain);
  // dataflow: f 0-2, g 1-3, b 2-4.   retain: f from 0, g from 1, b 2-4.
  CHECK(replay(dataflow, {{"f", "g", "b", "c"}}).devices[kGpu0].memory ==
        curve({{0, 4}, {1, 8}, {3, 4}, {4, 0}}));
  CHECK(replay(retain, {{"f", "g", "b", "c"}}).devices[kGpu0].memory ==
        curve({{0, 4}, {1, 8}, {2, 12}, {4, 0}}));

  // On two devices: f 0-1, copy 1-5; g 5-6, b 6-7, c 7-8. gpu:1 keeps the copy of f and g's output.
  const Trace two = replay(retain, {{"f"}, {"g", "b", "c"}}, {.devices = 2});
  CHECK(two.devices[kGpu0].memory == curve({{0, 4}, {8, 0}}));
  CHECK(two.devices[kGpu1].memory == curve({{0, 0}, {1, 4}, {5, 8}, {6, 12}, {8, 0}}));

  // A copy of a backward operator's output is freed as ever: b 6-7, copy 7-11, c 11-12.
  const Trace across = replay(retain, {{"f", "c"}, {"g", "b"}}, {.devices = 2});
  CHECK(across.devices[kGpu1].memory == curve({{0, 0}, {1, 4}, {5, 8}, {6, 12}, {11, 8}, {12, 0}}));
}

TEST_CASE(
    "memory: a tensor that nobody reads is held until the step ends, also by no device's work") {
  // a 0-1 on gpu:0, b 0-9 on gpu:1.
  const OpGraph graph = GraphSketch().op("a", 1).op("b", 9).tensor("a", 4, {}).build();
  const Trace trace = replay(graph, {{"a"}, {"b"}}, {.devices = 2});
  CHECK(trace.devices[kGpu0].memory == curve({{0, 4}, {9, 0}}));
}

// At 3, b and c take no time: b's temporary 5 and output 2, c's temporary 4. All count at 3, with
// a's output of 1, which c reads; a's temporary 8 has ended.
TEST_CASE("memory: intervals of no length count at their moment, all together") {
  const OpGraph graph = GraphSketch()
                            .ops({{"a", 3, 8}, {"b", 0, 5}, {"c", 0, 4}, {"d", 2}})
                            .tensors({{"a", 1, {"d"}}, {"b", 2, {"c"}}})
                            .control("a", "b")
                            .build();
  const DeviceTrace device = replay(graph, {{"a", "b", "c", "d"}}).devices[kGpu0];
  CHECK(device.memory == curve({{0, 9}, {3, 12}, {3, 1}, {5, 0}}));
  CHECK(device.peak == Bytes(12));
  CHECK(device.peak_at == Time(3));
  CHECK(device.peak_op == op_named(graph, "d"));  // 3 <= t < 5, the others take no time
}

TEST_CASE("memory: at the end of the step only what starts there is left") {
  // a 0-3 holds 7 and leaves 6 until 3, the makespan; z takes no time at 3 and 5 bytes.
  const OpGraph graph = GraphSketch()
                            .ops({{"a", 3, 1}, {"z", 0, 3}})
                            .tensors({{"a", 6, {}}, {"z", 2, {}}})
                            .control("a", "z")
                            .build();
  const DeviceTrace device = replay(graph, {{"a", "z"}}).devices[kGpu0];
  CHECK(device.memory == curve({{0, 7}, {3, 5}, {3, 0}}));
  CHECK(device.peak == Bytes(7));

  // With more than that, the peak is at the very end, while z runs.
  const OpGraph late =
      GraphSketch().op("a", 3, 1).op("z", 0, 30).tensor("a", 6, {}).control("a", "z").build();
  const DeviceTrace at_end = replay(late, {{"a", "z"}}).devices[kGpu0];
  CHECK(at_end.peak == Bytes(30));
  CHECK(at_end.peak_at == Time(3));
  CHECK(at_end.peak_op == op_named(late, "z"));
}

TEST_CASE("memory: the curve is recorded only when asked for, and nothing else changes") {
  const OpGraph graph = fork_join(3, Time(2), Bytes(5));
  const Cluster cluster = equal_devices(2, Bytes(100), Time(1));
  const CostModel costs(graph, cluster);
  const PlacedGraph placed = in_order(graph, {{"src", "m0", "sink"}, {"m1", "m2"}});
  const Trace plain = simulate(costs, placed);
  Trace recorded = simulate(costs, placed, {.record_memory = true});
  for (DeviceTrace& device : recorded.devices) {
    CHECK(!device.memory.empty());
    device.memory.clear();
  }
  CHECK(plain == recorded);
}

// gpu:0 holds 12 from 4 to 6; gpu:1 holds 11 from 2 to 3 and 20 later.
TEST_CASE("memory: the first device to overflow is found, by time and then by id") {
  const OpGraph graph =
      GraphSketch().op("a", 4).op("b", 2, 12).op("c", 2).op("d", 1, 11).op("e", 5, 20).build();
  const DeviceLists lists{{"a", "b"}, {"c", "d", "e"}};
  const auto overflow = [&](std::int64_t capacity) {
    const Cluster cluster = equal_devices(2, Bytes(capacity), Time(0));
    return find_overflow(simulate(CostModel(graph, cluster), in_order(graph, lists)), cluster);
  };
  REQUIRE(overflow(10).has_value());
  CHECK(overflow(10)->device == kGpu1);
  CHECK(overflow(10)->at == Time(2));
  CHECK(overflow(10)->over == Bytes(10));  // its peak is 20
  CHECK(overflow(11)->device == kGpu1);    // its 20 from 3 on, before gpu:0's 12 from 4 on
  CHECK(overflow(11)->at == Time(3));
  CHECK(!overflow(20).has_value());

  const OpGraph twins = GraphSketch().op("a", 1, 5).op("b", 1, 6).build();
  const Trace trace = replay(twins, {{"b"}, {"a"}}, {.devices = 2, .capacity = Bytes(4)});
  const Cluster cluster = equal_devices(2, Bytes(4), Time(0));
  CHECK(find_overflow(trace, cluster)->device == kGpu0);
  CHECK(find_overflow(trace, cluster)->over == Bytes(2));
}

}  // namespace
}  // namespace baechi::testing
