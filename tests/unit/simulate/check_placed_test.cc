// SPDX-License-Identifier: Apache-2.0
// What cannot be replayed is refused in words that name it.
#include <doctest/doctest.h>

#include <string>

#include "baechi/simulate/execution_simulator.h"
#include "unit/graph_sketch.h"
#include "unit/graphs.h"
#include "unit/refusal.h"
#include "unit/simulate/small_clusters.h"

namespace baechi::testing {
namespace {

std::string refusal(const OpGraph& graph, const Cluster& cluster, const PlacedGraph& placed) {
  const CostModel costs(graph, cluster);
  return refusal_of([&] { simulate(costs, placed); });
}

TEST_CASE("simulate: refuses placements and orders of the wrong size") {
  const OpGraph graph = chain({Time(1), Time(1)}, Bytes(1));
  const Cluster cluster = unit_latency_cluster(2, Bytes(100));
  CHECK(refusal(graph, cluster, {Placement(1, DeviceId(0)), {}}) ==
        "the placement has 1 operators, the graph has 2");
  CHECK(refusal(graph, cluster, in_order(graph, {{"a", "b"}})) ==
        "the order has 1 devices, the cluster has 2");
  CHECK(refusal(graph, cluster, in_order(graph, {{"a", "b"}, {}})) == "");
}

TEST_CASE("simulate: refuses an operator on a device that cannot run it or does not exist") {
  const OpGraph graph = chain({Time(1), Time(1)}, Bytes(1));
  ClusterSpec spec = equal_devices(1, Bytes(100), Time(0)).spec();
  spec.devices.push_back({"cpu:0", "cpu", Bytes(100), "localhost"});
  const Cluster cluster(spec);
  CHECK(refusal(graph, cluster, in_any_order(graph, {{"a"}, {"b"}})) ==
        "operator 'b' is placed on device 'cpu:0', but has no compute time for its kind 'cpu'");
  CHECK(refusal(graph, cluster, in_any_order(graph, {{"b"}, {}, {"a"}})) ==
        "operator 'a' is placed on device number 2, but the cluster has only 2");
}

TEST_CASE("simulate: refuses an order that is no partition of the operators") {
  const OpGraph graph = chain({Time(1), Time(1), Time(1)}, Bytes(1));
  const Cluster cluster = unit_latency_cluster(2, Bytes(100));
  const PlacedGraph placed = in_order(graph, {{"a", "b"}, {"c"}});
  const auto refusal_of = [&](const DeviceOrder& order) {
    return refusal(graph, cluster, {placed.device, order});
  };
  CHECK(refusal_of(placed.order.value()) == "");

  DeviceOrder missing = placed.order.value();
  missing[DeviceId(0)].pop_back();
  CHECK(refusal_of(missing) ==
        "the order of device 'gpu:0' lacks operator 'b', which is placed there");
  DeviceOrder twice = placed.order.value();
  twice[DeviceId(0)].push_back(OpId(0));
  CHECK(refusal_of(twice) == "the order of device 'gpu:0' lists operator 'a' twice");
  DeviceOrder elsewhere = placed.order.value();
  std::swap(elsewhere[DeviceId(0)], elsewhere[DeviceId(1)]);
  CHECK(refusal_of(elsewhere) ==
        "the order of device 'gpu:0' lists operator 'c', which is placed on device 'gpu:1'");
  DeviceOrder unknown = placed.order.value();
  unknown[DeviceId(1)].push_back(OpId(3));
  CHECK(refusal_of(unknown) ==
        "the order of device 'gpu:1' lists operator number 3, but the graph has only 3");
}

// a -> b and c -> d: gpu:0 wants b before c, gpu:1 wants d before a; e runs before either is stuck.
TEST_CASE("simulate: an order that waits for itself names where every device is stuck") {
  const OpGraph graph = GraphSketch()
                            .ops({{"a", 1}, {"b", 1}, {"c", 1}, {"d", 1}, {"e", 1}})
                            .tensor("a", 1, {"b"})
                            .control("c", "d")
                            .build();
  const Cluster cluster = unit_latency_cluster(3, Bytes(100));
  CHECK(
      refusal(graph, cluster, in_order(graph, {{"e", "b", "c"}, {"d", "a"}, {}})) ==
      "the order waits for itself: device 'gpu:0' is stuck at operator 'b', which waits for 'a' on "
      "device 'gpu:1'; device 'gpu:1' is stuck at operator 'd', which waits for 'c' on device "
      "'gpu:0'");
  const OpGraph small = chain({Time(1), Time(1)}, Bytes(1));
  CHECK(
      refusal(small, unit_latency_cluster(1, Bytes(100)), in_order(small, {{"b", "a"}})) ==
      "the order waits for itself: device 'gpu:0' is stuck at operator 'b', which waits for 'a' on "
      "device 'gpu:0'");
}

}  // namespace
}  // namespace baechi::testing
