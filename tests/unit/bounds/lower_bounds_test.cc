// SPDX-License-Identifier: Apache-2.0
#include "baechi/bounds/lower_bounds.h"

#include <doctest/doctest.h>

#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "baechi/bounds/one_machine.h"
#include "baechi/graph/op_graph_builder.h"
#include "unit/graphs.h"
#include "unit/simulate/small_clusters.h"

namespace baechi {
namespace {

std::optional<std::int64_t> bound(const OpGraph& graph, const Cluster& cluster,
                                  std::string_view name) {
  for (const NamedBound& bound : lower_bounds(CostModel(graph, cluster)))
    if (bound.name == name) return bound.value.count();
  return std::nullopt;
}

Cluster cluster_of(std::size_t count, std::int64_t latency, std::int64_t capacity = 1000) {
  return testing::equal_devices(count, Bytes(capacity), Time(latency), {},
                                CommunicationMode::kParallel);
}

TEST_CASE("bounds: figure 1 has its longest path, and its work shared by two") {
  const OpGraph graph = testing::figure_1();
  CHECK(bound(graph, cluster_of(2, 1), "longest path") == 8);
  CHECK(bound(graph, cluster_of(2, 1), "load") == 6);
  CHECK(bound(graph, cluster_of(1, 1), "load") == 12);
}

// A fork-join of three times 10: the sink either waits for a transfer or the middles queue up.
TEST_CASE("bounds: star weighs sending an input against computing it in the same place") {
  const OpGraph graph = testing::fork_join(3, Time(10), Bytes(1));
  CHECK(bound(graph, cluster_of(4, 0), "star") == 30);
  CHECK(bound(graph, cluster_of(4, 3), "star") == 33);   // from or to two of the middles
  CHECK(bound(graph, cluster_of(4, 99), "star") == 50);  // all parents of the sink on its device
}

TEST_CASE("bounds: as many operators as devices are a window as well") {
  OpGraphBuilder builder;
  for (const std::int64_t time : {10, 20})
    testing::timed(builder, {.name = "op" + std::to_string(time)}, Time(time));
  CHECK(bound(std::move(builder).build(), cluster_of(2, 1), "window") == 15);
}

// The first four take 80 on a device that is half as fast beside the other, then comes the last.
TEST_CASE("bounds: what comes behind a window counts on unequal devices, too") {
  OpGraphBuilder builder;
  const auto add = [&](const std::string& name, std::int64_t gpu, std::int64_t cpu) {
    const OpId op = testing::timed(builder, {.name = name}, Time(gpu));
    builder.set_time(op, "cpu", Time(cpu));
    return op;
  };
  const OpId last = add("last", 50, 100);
  for (int i = 0; i < 4; ++i) builder.add_control_edge(add("op" + std::to_string(i), 30, 60), last);
  ClusterSpec spec = cluster_of(2, 0).spec();
  spec.devices[1].kind = "cpu";
  CHECK(bound(std::move(builder).build(), Cluster(spec), "window") == 130);
}

// Only the first tensor is sent: all that takes time on the one device takes none on the other.
TEST_CASE("bounds: where nothing need take time, no device waits beside its work") {
  OpGraphBuilder builder;
  const OpId begin = testing::timed(builder, {.name = "begin"}, Time(0), "cpu");
  const OpId middle = testing::timed(builder, {.name = "middle"}, Time(0), "cpu");
  const OpId end = testing::timed(builder, {.name = "end"}, Time(0), "cpu");
  const OpId other = builder.add_operator({.name = "other"});
  builder.set_time(middle, "gpu", Time(5));
  builder.set_time(other, "gpu", Time(0));
  const TensorId sent = builder.add_output(begin, Bytes(0));
  builder.connect(sent, middle);
  builder.connect(sent, other);
  builder.connect(builder.add_output(middle, Bytes(0)), end);
  const OpGraph graph = std::move(builder).build();
  ClusterSpec spec = cluster_of(2, 10).spec();
  spec.devices[1].kind = "cpu";
  const Cluster cluster(spec);
  for (const NamedBound& found : lower_bounds(CostModel(graph, cluster))) {
    CAPTURE(found.name);
    CHECK(found.value <= Time(10));
  }
}

TEST_CASE("bounds: unequal devices share the work by their speeds") {
  OpGraphBuilder builder;
  for (int i = 0; i < 4; ++i) {
    const OpId op = testing::timed(builder, {.name = "op" + std::to_string(i)}, Time(30));
    if (i < 2) builder.set_time(op, "cpu", Time(60));
  }
  const OpGraph graph = std::move(builder).build();
  ClusterSpec spec = cluster_of(2, 0).spec();
  // Half the speed: 120 ns of work on 1.5 devices.
  spec.devices[1].speed = Speed(500'000);
  CHECK(bound(graph, Cluster(spec), "load") == 80);
  // Two operators cannot go to the slow one: 60 + 30 x against 60 (2 - x), so x = 2/3.
  spec.devices[1].speed = kFullSpeed;
  spec.devices[1].kind = "cpu";
  CHECK(*bound(graph, Cluster(spec), "load") >= 79);
  CHECK(*bound(graph, Cluster(spec), "load") <= 80);
}

TEST_CASE("bounds: a fast device without room for the weights leaves work to the slow one") {
  OpGraphBuilder builder;
  for (int i = 0; i < 10; ++i)
    testing::timed(builder, {.name = "op" + std::to_string(i), .permanent = Bytes(10)}, Time(10),
                   "*");
  const OpGraph graph = std::move(builder).build();
  ClusterSpec spec = cluster_of(2, 0).spec();
  spec.devices[1].speed = Speed(100'000);
  CHECK(bound(graph, Cluster(spec), "load") == 91);  // 100 / 1.1
  spec.devices[0].capacity = Bytes(50);              // so five of ten must take 100 ns each
  CHECK(*bound(graph, Cluster(spec), "load") >= 490);
  CHECK(*bound(graph, Cluster(spec), "load") <= 500);
}

TEST_CASE("bounds: a colocation group runs on one device, one operator after the other") {
  OpGraphBuilder builder;
  for (int i = 0; i < 4; ++i) {
    const OpId op = testing::timed(builder, {.name = "op" + std::to_string(i)}, Time(10));
    if (i < 3) builder.add_to_group(op, "g");
  }
  const OpGraph graph = std::move(builder).build();
  CHECK(bound(graph, cluster_of(4, 0), "one device") == 30);
  CHECK(bound(graph, cluster_of(4, 0), "load") == 10);
}

TEST_CASE("bounds: a chain too large for one device pays for its cheapest cut") {
  const OpGraph graph = testing::chain({Time(5), Time(5), Time(5), Time(5)}, Bytes(0), Bytes(10));
  CHECK(bound(graph, cluster_of(2, 7, 40), "memory path") == 0);
  const Cluster roomy = cluster_of(2, 7, 40);
  CHECK(lower_bounds(CostModel(graph, roomy)).front().value == Time(20));
  CHECK(bound(graph, cluster_of(2, 7, 39), "memory path") == 27);
  CHECK(bound(graph, cluster_of(4, 7, 19), "memory path") == 41);  // no two fit together
}

TEST_CASE("bounds: pins make transfers unavoidable") {
  OpGraphBuilder builder;
  const OpId a = builder.add_operator({.name = "a", .pin = "gpu:0"});
  const OpId b = builder.add_operator({.name = "b", .pin = "gpu:1"});
  builder.set_time(a, "gpu", Time(5));
  builder.set_time(b, "gpu", Time(5));
  builder.connect(builder.add_output(a, Bytes(1)), b);
  const OpGraph graph = std::move(builder).build();
  const Cluster cluster = cluster_of(2, 7);
  CHECK(bound(graph, cluster, "star") == 17);
  CHECK(bound(graph, cluster, "longest path") == 10);
}

TEST_CASE("bounds: two tensors between two devices queue up unless transfers are parallel") {
  OpGraphBuilder builder;
  const OpId a = builder.add_operator({.name = "a", .pin = "gpu:0"});
  const OpId b = builder.add_operator({.name = "b", .pin = "gpu:1"});
  builder.set_time(a, "gpu", Time(5));
  builder.set_time(b, "gpu", Time(5));
  builder.connect(builder.add_output(a, Bytes(1)), b);
  builder.connect(builder.add_output(a, Bytes(2)), b);
  const OpGraph graph = std::move(builder).build();
  ClusterSpec spec = cluster_of(2, 7).spec();
  spec.links[0].bandwidth = Bandwidth(1'000'000'000);  // 8 and 9 ns
  CHECK(bound(graph, Cluster(spec), "star") == 19);
  spec.communication = CommunicationMode::kSequential;
  CHECK(bound(graph, Cluster(spec), "star") == 27);
  spec.communication = CommunicationMode::kDuplex;
  CHECK(bound(graph, Cluster(spec), "star") == 27);
}

TEST_CASE("bounds: there are none when an operator has no device that can run or hold it") {
  OpGraphBuilder builder;
  testing::timed(builder, {.name = "op", .permanent = Bytes(11)}, Time(5));
  const OpGraph graph = std::move(builder).build();
  const Cluster enough = cluster_of(2, 0, 11), short_by_one = cluster_of(2, 0, 10);
  CHECK(lower_bounds(CostModel(graph, enough)).front().value == Time(5));
  CHECK(lower_bounds(CostModel(graph, short_by_one)).empty());
}

TEST_CASE("bounds: there are none when the devices together are too small") {
  const OpGraph graph = testing::chain({Time(5), Time(5), Time(5)}, Bytes(0), Bytes(10));
  const Cluster enough = cluster_of(2, 7, 20), too_small = cluster_of(2, 7, 14);
  CHECK(lower_bounds(CostModel(graph, enough)).front().value == Time(22));
  CHECK(lower_bounds(CostModel(graph, too_small)).empty());
  // Two tensors of 10 bytes that meet at their consumer, wherever it is, and its own.
  const OpGraph wide = testing::fork_join(2, Time(5), Bytes(10));
  const Cluster narrow = cluster_of(4, 7, 19), wide_enough = cluster_of(4, 7, 20);
  CHECK(lower_bounds(CostModel(wide, narrow)).empty());
  CHECK_FALSE(lower_bounds(CostModel(wide, wide_enough)).empty());
}

TEST_CASE("bounds: they stop when asked to") {
  const OpGraph graph = testing::chain({Time(5), Time(5)}, Bytes(0), Bytes(10));
  const Cluster cluster = cluster_of(2, 7, 100);
  const CostModel costs(graph, cluster);
  CancelFlag cancel;
  CHECK_FALSE(lower_bounds(costs, &cancel).empty());
  cancel.request();
  CHECK_THROWS_AS(lower_bounds(costs, &cancel), Cancelled);
}

// Four jobs wait when a fifth interrupts the one with the longest tail, which goes on afterwards:
// 0-4 tail 8, 4-8 tail 6, 8-12 tail 4, 12-16 tail 2, 16-17 tail 1.
TEST_CASE("bounds: a job that is interrupted on one device is not over") {
  std::vector<bounds::HeadTailJob> jobs{{2, 1, 1}, {0, 4, 8}, {0, 4, 6}, {0, 4, 4}, {0, 4, 2}};
  bounds::PreemptiveMachine machine;
  CHECK(machine.makespan(jobs) == 18);
  CHECK(machine.makespan(jobs) == 18);
}

}  // namespace
}  // namespace baechi
