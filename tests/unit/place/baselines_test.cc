// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <set>
#include <variant>
#include <vector>

#include "baechi/base/error.h"
#include "baechi/cost/cost_model.h"
#include "baechi/graph/op_graph_builder.h"
#include "baechi/place/placer.h"
#include "baechi/place/sequential_peak.h"
#include "unit/graphs.h"
#include "unit/simulate/small_clusters.h"

namespace baechi {
namespace {

Cluster two_devices(Device first, Device second) {
  ClusterSpec spec;
  spec.devices = {std::move(first), std::move(second)};
  spec.links = {LinkRule{}};
  return Cluster(std::move(spec));
}

TEST_CASE("single: the fastest device that holds the graph wins") {
  const OpGraph graph = testing::chain({Time(3), Time(3), Time(3)}, Bytes(10), Bytes(5));
  const Device small{"gpu:0", "gpu", Bytes(34), "h", Speed(2'000'000)};
  const Device large{"gpu:1", "gpu", Bytes(35), "h", kFullSpeed};
  // Two of the three outputs are alive while b runs: 15 + 20 bytes.
  CHECK(sequential_peak(graph, graph.topological_order()).bytes == Bytes(35));
  CHECK(sequential_peak(graph, graph.topological_order()).op == OpId(1));
  CHECK(sequential_peak(graph, graph.topological_order(), true).bytes == Bytes(45));

  const auto first_device = [&](const Cluster& cluster) {
    return std::get<PlacedGraph>(place_single(CostModel(graph, cluster), {})).device[OpId(0)];
  };
  Device grown = small;
  grown.capacity = Bytes(35);
  CHECK(first_device(two_devices(small, large)) == DeviceId(1));
  CHECK(first_device(two_devices(grown, large)) == DeviceId(0));
  CHECK(first_device(two_devices(large, Device{"gpu:0", "gpu", Bytes(99), "h", kFullSpeed})) ==
        DeviceId(0));

  Device tiny{"gpu:1", "gpu", Bytes(30), "h", kFullSpeed};
  const Cluster cramped = two_devices(small, tiny);
  const PlaceResult result = place_single(CostModel(graph, cramped), {});
  REQUIRE(std::holds_alternative<DoesNotFit>(result));
  CHECK(std::get<DoesNotFit>(result).op == OpId(1));
  CHECK(std::get<DoesNotFit>(result).short_by == Bytes(1));
}

TEST_CASE("single: retained outputs count until the end") {
  OpGraphBuilder builder;
  builder.set_memory_mode(MemoryMode::kRetain);
  std::optional<TensorId> previous;
  for (const char* name : {"a", "b", "c", "d"}) {
    const OpId op = testing::timed(builder, {.name = name, .backward = *name == 'c'}, Time(1));
    if (previous) builder.connect(*previous, op);
    previous = builder.add_output(op, Bytes(*name == 'c' ? 50 : 10));
  }
  const OpGraph graph = std::move(builder).build();
  CHECK(sequential_peak(graph, graph.topological_order()).bytes == Bytes(80));
}

TEST_CASE("random: seeds differ, and every allowed device is drawn") {
  const OpGraph graph = testing::fork_join(30, Time(1), Bytes(1));
  const Cluster cluster = testing::unit_latency_cluster(3, Bytes(100));
  const CostModel costs(graph, cluster);
  const auto draw = [&](std::uint64_t seed) {
    PlaceOptions options;
    options.seed = seed;
    return std::get<PlacedGraph>(place_random(costs, options)).device;
  };
  CHECK(draw(1) == draw(1));
  CHECK(draw(1) != draw(2));
  const Placement drawn = draw(1);
  CHECK(std::set<DeviceId>(drawn.begin(), drawn.end()).size() == 3);
}

TEST_CASE("balanced: equal weight bytes per device along the topological order") {
  const OpGraph graph = testing::chain(std::vector<Time>(6, Time(1)), Bytes(70), Bytes(10));
  const Cluster cluster = testing::unit_latency_cluster(3, Bytes(1000));
  const PlaceResult result = place_balanced(CostModel(graph, cluster), {});
  const Placement expected{DeviceId(0), DeviceId(0), DeviceId(1),
                           DeviceId(1), DeviceId(2), DeviceId(2)};
  CHECK(std::get<PlacedGraph>(result).device == expected);
}

TEST_CASE("expert: a placement that breaks a rule is the user's error, with the operator's name") {
  OpGraphBuilder builder;
  for (const char* name : {"a", "b", "c"}) {
    const OpId op = builder.add_operator({.name = name});
    builder.set_time(op, *name == 'c' ? "gpu" : "*", Time(1));
    if (*name != 'c') builder.add_to_group(op, "g");
  }
  const OpGraph graph = std::move(builder).build();
  const Cluster cluster = two_devices({"gpu:0", "gpu", Bytes(9), "h", kFullSpeed},
                                      {"cpu:0", "cpu", Bytes(9), "h", kFullSpeed});
  const CostModel costs(graph, cluster);
  const auto place = [&](std::vector<int> devices) {
    Placement placement;
    for (const int device : devices) placement.push_back(DeviceId(device));
    PlaceOptions options;
    options.expert = &placement;
    return std::get<PlacedGraph>(place_expert(costs, options)).device;
  };
  CHECK(place({1, 1, 0}) == Placement{DeviceId(1), DeviceId(1), DeviceId(0)});
  CHECK_THROWS_WITH_AS(place({1, 0, 0}), doctest::Contains("'a' from operator 'b'"), InputError);
  CHECK_THROWS_WITH_AS(place({0, 0, 1}), doctest::Contains("'c' on device 'cpu:0'"), InputError);
  CHECK_THROWS_WITH_AS(place({0, 0}), doctest::Contains("2 operators, the graph has 3"),
                       InputError);
  CHECK_THROWS_WITH_AS(place({0, 0, 5}), doctest::Contains("'c' on a device"), InputError);
  CHECK_THROWS_AS(place_expert(costs, {}), InputError);
}

TEST_CASE("single: a device that is faster by one nanosecond is faster") {
  const OpGraph graph = testing::chain({Time(500)}, Bytes(1));
  ClusterSpec spec = testing::equal_devices(2, Bytes(100), Time(1)).spec();
  spec.devices[0].speed = Speed(999'000);
  const Cluster cluster(spec);
  const CostModel costs(graph, cluster);
  REQUIRE(costs.compute_time(OpId(0), DeviceId(0)) == Time(501));
  CHECK(std::get<PlacedGraph>(place_single(costs, {})).device[OpId(0)] == DeviceId(1));
}

TEST_CASE("balanced: a graph without weights is balanced by all that its operators need") {
  const OpGraph graph = testing::chain(std::vector<Time>(4, Time(1)), Bytes(10));
  const Cluster cluster = testing::equal_devices(2, Bytes(100), Time(1));
  const PlaceResult placed = place_balanced(CostModel(graph, cluster), {});
  const Placement& device = std::get<PlacedGraph>(placed).device;
  CHECK(device[OpId(0)] == DeviceId(0));
  CHECK(device[OpId(3)] == DeviceId(1));
}

}  // namespace
}  // namespace baechi
