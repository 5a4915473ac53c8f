// SPDX-License-Identifier: Apache-2.0
#include "baechi/simulate/critical_path.h"

#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "baechi/base/error.h"
#include "baechi/simulate/execution_simulator.h"
#include "unit/graph_sketch.h"
#include "unit/graphs.h"
#include "unit/simulate/small_clusters.h"

namespace baechi::testing {
namespace {

using enum CriticalReason;

const char* word(CriticalReason reason) {
  constexpr const char* kWords[] = {"start",    "input", "control", "arrival",
                                    "produced", "busy",  "queue",   "channel"};
  return kWords[static_cast<std::size_t>(reason)];
}

// "a 0-1 start, >a 1-2 produced, ..." where ">a" is a transfer of what `a` made.
std::string told(const OpGraph& graph, const CriticalPath& path) {
  std::string text;
  for (const CriticalLink& link : path.links)
    text += (text.empty() ? "" : ", ") + std::string(link.transfer.has_value() ? ">" : "") +
            std::string(graph[link.op].name) + " " + std::to_string(link.start.count()) + "-" +
            std::to_string(link.end.count()) + " " + word(link.reason);
  return text;
}

struct Told {
  CriticalPath path;
  std::string text;
};

Told path_of(const OpGraph& graph, const Cluster& cluster, const PlacedGraph& placed) {
  const Schedule schedule = simulate(CostModel(graph, cluster), placed).schedule;
  Told result{critical_path(graph, cluster, schedule), {}};
  result.text = told(graph, result.path);
  return result;
}

// gpu:0  a 0-1, b 1-4, c 4-7, d 7-8; gpu:1  e 2-5, f 5-6. What f made arrives at 7, as c ends: both
// hold d up, and the smaller id is told.
TEST_CASE("critical path: figure 1 runs along a, b, c, d") {
  const OpGraph graph = figure_1();
  const Cluster cluster = unit_latency_cluster(2, Bytes(100));
  const Told told = path_of(graph, cluster, in_order(graph, {{"a", "b", "c", "d"}, {"e", "f"}}));

  CHECK(told.text == "a 0-1 start, b 1-4 input, c 4-7 input, d 7-8 input");
  CHECK(told.path.total(CriticalUse::kCompute) == Time(8));
}

// a and b are ready at 0 on one device; c on the other one needs b.
TEST_CASE("critical path: an operator that waits for a busy device names what kept it busy") {
  const OpGraph graph =
      GraphSketch().op("a", 5).op("b", 2).op("c", 3).tensor("b", 4, {"c"}).build();
  const Cluster cluster = byte_per_ns(2, CommunicationMode::kSequential);
  const Told told = path_of(graph, cluster, in_order(graph, {{"a", "b"}, {"c"}}));

  CHECK(told.text == "a 0-5 start, b 5-7 busy, >b 7-11 produced, c 11-14 arrival");
  CHECK(told.path.links[1].ready == Time(0));
  CHECK(told.path.links[3].ready == Time(11));
  CHECK(told.path.total(CriticalUse::kDeviceWait) == Time(5));
  CHECK(told.path.total(CriticalUse::kCompute) == Time(5));
  CHECK(told.path.total(CriticalUse::kTransfer) == Time(4));
  CHECK(told.path.total(CriticalUse::kQueueWait) == Time(0));
}

// a's two outputs leave gpu:0 one after the other: 6 bytes to gpu:1, 2 bytes to gpu:2.
TEST_CASE("critical path: a transfer that waits in a queue names the one ahead of it") {
  const OpGraph graph = GraphSketch()
                            .ops({{"a", 1}, {"b", 1}, {"c", 9}})
                            .tensors({{"a", 6, {"b"}}, {"a", 2, {"c"}}})
                            .build();
  const PlacedGraph placed = in_order(graph, {{"a"}, {"b"}, {"c"}});
  for (const auto mode : {CommunicationMode::kSequential, CommunicationMode::kDuplex}) {
    const Told told = path_of(graph, byte_per_ns(3, mode), placed);
    CHECK(told.text == "a 0-1 start, >a 1-7 produced, >a 7-9 queue, c 9-18 arrival");
    CHECK(told.path.links[2].queue == DeviceId(0));
    CHECK(told.path.links[2].ready == Time(1));
    CHECK(told.path.total(CriticalUse::kQueueWait) == Time(6));
    CHECK(told.path.total(CriticalUse::kTransfer) == Time(2));
  }
  const Told told = path_of(graph, byte_per_ns(3, CommunicationMode::kParallel), placed);
  CHECK(told.text == "a 0-1 start, >a 1-3 produced, c 3-12 arrival");
}

// gpu:0 -> gpu:1 (5 bytes) and gpu:2 -> gpu:3 (3 bytes) share one bus and no device.
TEST_CASE("critical path: a shared channel is named") {
  const OpGraph graph = GraphSketch()
                            .ops({{"a", 1}, {"b", 1}, {"c", 1}, {"d", 4}})
                            .tensors({{"a", 5, {"c"}}, {"b", 3, {"d"}}})
                            .build();
  ClusterSpec spec = byte_per_ns(4, CommunicationMode::kDuplex).spec();
  for (LinkRule& rule : spec.links) rule.channels = {"bus"};
  const Cluster cluster(std::move(spec));
  const Told told = path_of(graph, cluster, in_order(graph, {{"a"}, {"c"}, {"b"}, {"d"}}));

  CHECK(told.text == "a 0-1 start, >a 1-6 produced, >b 6-9 channel, d 9-13 arrival");
  REQUIRE(told.path.links[2].channel.has_value());
  CHECK(cluster.channel_name(*told.path.links[2].channel) == "bus");
}

// z takes no time and is told to run before c; it waits for a's tensor, which arrives at 5.
//   gpu:0  a 0-2; gpu:1  z 5-5 (in order), then c, which needs nothing
TEST_CASE("critical path: what takes no time is a link like any other") {
  const OpGraph graph =
      GraphSketch().op("a", 2).op("z", 0).op("c", 4).tensor("a", 3, {"z"}).build();
  const Cluster cluster = byte_per_ns(2, CommunicationMode::kSequential);
  const Told told = path_of(graph, cluster, in_order(graph, {{"a"}, {"z", "c"}}));

  CHECK(told.text == "a 0-2 start, >a 2-5 produced, z 5-5 arrival, c 5-9 busy");
}

// A thousand operators without length, in an order against their ids, all held up by the first.
TEST_CASE("critical path: a crowd in one moment is gone through once") {
  GraphSketch sketch;
  sketch.op("a", 2).op("last", 1);
  std::vector<std::string> names;
  for (int i = 0; i < 1000; ++i) names.push_back("z" + std::to_string(i));
  for (const std::string& name : names) sketch.op(name, 0);
  sketch.tensor("a", 3, {"z999"});
  const OpGraph graph = sketch.build();
  DeviceLists lists{{"a"}, {}};
  for (auto name = names.rbegin(); name != names.rend(); ++name) lists[1].push_back(*name);
  lists[1].push_back("last");
  const Cluster cluster = byte_per_ns(2, CommunicationMode::kSequential);
  const Told told = path_of(graph, cluster, in_order(graph, lists));

  CHECK(told.path.links.front().op == OpId(0));
  CHECK(told.path.links.back().op == OpId(1));
  CHECK(told.path.links.back().end == Time(6));
}

TEST_CASE("critical path: a schedule in which something starts for no reason is refused") {
  const OpGraph graph = chain({Time(3), Time(4)}, Bytes(2));
  const Cluster cluster = byte_per_ns(1, CommunicationMode::kSequential);
  Schedule schedule =
      simulate(CostModel(graph, cluster), {Placement(2, DeviceId(0)), std::nullopt}).schedule;
  schedule.slots[OpId(1)] = {DeviceId(0), Time(4), Time(8)};
  schedule.makespan = Time(8);
  CHECK_THROWS_WITH_AS(critical_path(graph, cluster, schedule),
                       doctest::Contains("starts at 4 ns for no reason"), InputError);
}

}  // namespace
}  // namespace baechi::testing
