// SPDX-License-Identifier: Apache-2.0
#include "baechi/place/partition/partition.h"

#include <doctest/doctest.h>

#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "baechi/cost/cost_model.h"
#include "baechi/graph/op_graph_builder.h"
#include "baechi/place/placer.h"
#include "baechi/simulate/execution_simulator.h"
#include "unit/graphs.h"
#include "unit/simulate/small_clusters.h"

namespace baechi {
namespace {

Cluster cluster_of(std::vector<Device> devices, Time latency) {
  ClusterSpec spec;
  spec.devices = std::move(devices);
  spec.links.emplace_back().latency = latency;
  return Cluster(std::move(spec));
}

Trace partitioned(const OpGraph& graph, const Cluster& cluster) {
  const CostModel costs(graph, cluster);
  return simulate(costs, std::get<PlacedGraph>(place_partition(costs, {})));
}

// Four operators that do not know each other; two fast devices hold one each, a slow one the rest.
TEST_CASE("partition: a plan that fits is better than a faster one that does not") {
  OpGraphBuilder builder;
  for (const char* name : {"a", "b", "c", "d"})
    builder.set_time(builder.add_operator({.name = name, .permanent = Bytes(8)}), "gpu", Time(10));
  const OpGraph graph = std::move(builder).build();
  const Cluster cluster =
      cluster_of({{"gpu:0", "gpu", Bytes(10), "h", kFullSpeed},
                  {"gpu:1", "gpu", Bytes(10), "h", kFullSpeed},
                  {"gpu:2", "gpu", Bytes(100), "h", Speed(kFullSpeed.count() / 2)}},
                 Time(1));
  const Trace trace = partitioned(graph, cluster);
  CHECK(total_excess(trace, cluster) == Bytes(0));
  CHECK(trace.schedule.makespan == Time(40));
}

//   s0 --> r0    s1 --> r1    s2 --> r2    s3 --> r3    long
//
// Each source has a device of its own, the rest shares two. Judged by compute time alone one of
// them takes `long`, and the other one all readers, whose transfers then wait for each other.
TEST_CASE("partition: transfers keep the device busy that receives them, too") {
  OpGraphBuilder builder;
  std::vector<Device> devices;
  for (const char* digit : {"0", "1", "2", "3"}) {
    const std::string device = std::string("source:") + digit;
    devices.push_back({device, "source", Bytes(1'000), "h", kFullSpeed});
    const OpId source = builder.add_operator({.name = std::string("s") + digit, .pin = device});
    const OpId reader = builder.add_operator({.name = std::string("r") + digit});
    builder.set_time(source, "source", Time(1));
    builder.set_time(reader, "reader", Time(25));
    builder.connect(builder.add_output(source, Bytes(1)), reader);
  }
  builder.set_time(builder.add_operator({.name = "long"}), "reader", Time(100));
  const OpGraph graph = std::move(builder).build();
  for (const char* name : {"reader:0", "reader:1"})
    devices.push_back({name, "reader", Bytes(1'000), "h", kFullSpeed});
  const Cluster cluster = cluster_of(std::move(devices), Time(100));
  // Two readers beside `long`: 1 + 100 + 100 + 25.
  CHECK(partitioned(graph, cluster).schedule.makespan == Time(226));
}

// Searches that run it again and again charge their budget so much.
TEST_CASE("partition: what it takes grows with the graph, and faster than the devices") {
  const auto work = [](std::size_t max_ops, std::size_t devices) {
    const OpGraph graph = testing::random_dag(1, {.min_ops = max_ops, .max_ops = max_ops});
    const Cluster cluster = testing::unit_latency_cluster(devices, Bytes(1'000'000));
    return partition(CostModel(graph, cluster), {}).work;
  };
  CHECK(work(40, 2) > 400);
  CHECK(work(160, 2) > 4 * work(40, 2));
  CHECK(work(160, 8) > 8 * work(160, 2));
  CHECK(work(160, 64) < 16 * work(160, 8));
}

TEST_CASE("partition: of many devices more are tried while that helps") {
  const auto equal = [](std::size_t count, Bytes capacity, Time latency) {
    return testing::equal_devices(count, capacity, latency, Bandwidth(1'000'000'000));
  };
  const OpGraph joined =
      testing::random_dag(1, {.min_ops = 200, .max_ops = 200, .edge_chance = 0.015});
  const auto work = [&](std::size_t count) {
    const Cluster cluster = equal(count, Bytes(1'000'000), Time(1'000));
    return partition(CostModel(joined, cluster), {}).work;
  };
  CHECK(work(200) < 2 * work(16));

  OpGraphBuilder builder;
  for (int i = 0; i < 64; ++i)
    builder.set_time(
        builder.add_operator({.name = "op" + std::to_string(i), .permanent = Bytes(8)}), "gpu",
        Time(10));
  const OpGraph apart = std::move(builder).build();
  CHECK(partitioned(apart, equal(64, Bytes(100), Time(5))).schedule.makespan == Time(10));
}

}  // namespace
}  // namespace baechi
