// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <variant>

#include "baechi/cost/cost_model.h"
#include "baechi/graph/op_graph_builder.h"
#include "baechi/place/fill/fill.h"
#include "baechi/place/placer.h"
#include "unit/graphs.h"
#include "unit/simulate/small_clusters.h"

namespace baechi {
namespace {

Cluster devices_of(const std::vector<std::int64_t>& capacities) {
  ClusterSpec spec = testing::equal_devices(capacities.size(), Bytes(1), Time(1)).spec();
  for (std::size_t i = 0; i < capacities.size(); ++i)
    spec.devices[i].capacity = Bytes(capacities[i]);
  return Cluster(std::move(spec));
}

std::vector<std::uint32_t> placed_on(const PlaceResult& result) {
  std::vector<std::uint32_t> devices;
  for (const DeviceId device : std::get<PlacedGraph>(result).device)
    devices.push_back(device.value());
  return devices;
}

// Six operators of 10 bytes: Cap = 60 / 3 + 10 = 30, so the last device is left over.
TEST_CASE("m-topo: devices fill up to sum / n + max in topological order") {
  const OpGraph graph = testing::chain(std::vector<Time>(6, Time(1)), Bytes(4), Bytes(6));
  const Cluster cluster = devices_of({100, 100, 100});
  CHECK(placed_on(place_m_topo(CostModel(graph, cluster), {})) ==
        std::vector<std::uint32_t>{0, 0, 0, 1, 1, 1});
}

// Shares of the 60 bytes by capacity, plus the largest: 20 + 10 and 40 + 10.
TEST_CASE("m-topo: unequal devices fill in proportion to their capacity") {
  const OpGraph graph = testing::chain(std::vector<Time>(6, Time(1)), Bytes(4), Bytes(6));
  const Cluster cluster = devices_of({50, 100});
  CHECK(placed_on(place_m_topo(CostModel(graph, cluster), {})) ==
        std::vector<std::uint32_t>{0, 0, 0, 1, 1, 1});
}

// a and e, of 30 bytes, are one group; b, c and d have 20 each. `one_by_one`: each after the last.
OpGraph five_with_a_group(bool one_by_one) {
  OpGraphBuilder builder;
  for (const char* name : {"a", "b", "c", "d", "e"}) {
    const bool grouped = *name == 'a' || *name == 'e';
    const OpId op =
        testing::timed(builder, {.name = name, .permanent = Bytes(grouped ? 30 : 20)}, Time(1));
    if (grouped) builder.add_to_group(op, "weights");
    if (one_by_one && op > OpId(0)) builder.add_control_edge(OpId(op.index() - 1), op);
  }
  return std::move(builder).build();
}

// The group {a, e} counts 40 bytes: Cap = 60 / 2 + 40, and e goes with a.
TEST_CASE("m-topo: the first operator of a group decides for all of it") {
  const OpGraph graph = five_with_a_group(true);
  const Cluster cluster = devices_of({90, 90});
  // Cap = 120 / 2 + 60: a, e, b, c, d would all fit under it, but only 90 bytes are there.
  CHECK(placed_on(place_m_topo(CostModel(graph, cluster), {})) ==
        std::vector<std::uint32_t>{0, 0, 1, 1, 0});
}

TEST_CASE("m-topo: what reserving everything accepts can not overflow") {
  const OpGraph graph = testing::chain(std::vector<Time>(4, Time(1)), Bytes(10), Bytes(5));
  PlaceOptions reserve;
  reserve.memory = MemoryPolicy::kReserve;
  // Cap = 60 / 2 + 15 = 45: three operators and then one, with a copy of c's output beside it.
  const Cluster cluster = devices_of({45, 45});
  CHECK(std::holds_alternative<PlacedGraph>(place_m_topo(CostModel(graph, cluster), reserve)));
  const Cluster tight = devices_of({44, 44});
  CHECK(std::holds_alternative<DoesNotFit>(place_m_topo(CostModel(graph, tight), reserve)));
  CHECK(reserved_bytes(CostModel(graph, cluster),
                       Placement{DeviceId(0), DeviceId(0), DeviceId(0), DeviceId(1)}) ==
        IdVector<DeviceId, Bytes>{Bytes(45), Bytes(25)});
}

// Cap = 120 / 2 + 60, not + 30: a group counts as one operator, and all of it fits under the cap.
TEST_CASE("m-topo: a colocation group counts as one operator in the cap") {
  const OpGraph graph = five_with_a_group(false);
  const Cluster cluster = devices_of({900, 900});
  CHECK(placed_on(place_m_topo(CostModel(graph, cluster), {})) ==
        std::vector<std::uint32_t>{0, 0, 0, 0, 0});
}

}  // namespace
}  // namespace baechi
