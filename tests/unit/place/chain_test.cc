// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <algorithm>
#include <string>

#include "baechi/base/random.h"
#include "baechi/graph/op_graph_builder.h"
#include "baechi/place/chain/chain_costs.h"
#include "baechi/place/placer.h"
#include "baechi/simulate/execution_simulator.h"
#include "unit/graphs.h"
#include "unit/simulate/small_clusters.h"

namespace baechi {
namespace {

using testing::chain;
using testing::equal_devices;
using testing::random_cluster;
using testing::random_dag;

// a -> b -> c -> d, each 10 ns and 4 bytes of weights, tensors of no size, one transfer 3 ns:
// two devices of 8 bytes hold two operators each, so one cut: 4 * 10 + 3.
TEST_CASE("chain: a chain that needs two devices is cut once") {
  const OpGraph graph = chain({Time(10), Time(10), Time(10), Time(10)}, Bytes(0), Bytes(4));
  const Cluster cluster = equal_devices(3, Bytes(8), Time(3));
  const CostModel costs(graph, cluster);
  const PlaceResult result = place_chain(costs, {});
  REQUIRE(std::holds_alternative<PlacedGraph>(result));
  CHECK(simulate(costs, std::get<PlacedGraph>(result)).schedule.makespan == Time(43));
}

// The slow device takes twice as long, so it gets the two operators of 1 ns: 10 + 10 + 2 + 2 and
// one transfer. Cutting in the middle would cost 10 + 10 * 2.
TEST_CASE("chain: the slow device gets the short operators") {
  const OpGraph graph = chain({Time(10), Time(10), Time(1), Time(1)}, Bytes(0), Bytes(4));
  ClusterSpec spec = equal_devices(2, Bytes(8), Time(3)).spec();
  spec.devices[0].speed = Speed(500'000);
  const Cluster cluster(spec);
  const CostModel costs(graph, cluster);
  const PlaceResult result = place_chain(costs, {});
  REQUIRE(std::holds_alternative<PlacedGraph>(result));
  CHECK(simulate(costs, std::get<PlacedGraph>(result)).schedule.makespan == Time(27));
}

TEST_CASE("chain: with room for everything a chain stays on one device") {
  const OpGraph graph = chain({Time(10), Time(10), Time(10)}, Bytes(5), Bytes(4));
  const Cluster cluster = equal_devices(3, Bytes(1'000), Time(1));
  const CostModel costs(graph, cluster);
  const Placement placement = std::get<PlacedGraph>(place_chain(costs, {})).device;
  CHECK(std::count(placement.begin(), placement.end(), placement[OpId(0)]) == 3);
}

TEST_CASE("chain: an operator larger than every device is named") {
  const OpGraph graph = chain({Time(1), Time(1)}, Bytes(0), Bytes(9));
  const Cluster cluster = equal_devices(2, Bytes(8), Time(1));
  const CostModel costs(graph, cluster);
  const PlaceResult result = place_chain(costs, {});
  REQUIRE(std::holds_alternative<DoesNotFit>(result));
  CHECK(std::get<DoesNotFit>(result).op == OpId(0));
  CHECK(std::get<DoesNotFit>(result).short_by == Bytes(1));
}

// Segment costs against sums made from scratch.
TEST_CASE("chain: segment costs equal their definition on 200 random graphs") {
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    CAPTURE(seed);
    const OpGraph graph = random_dag(
        seed, {.max_ops = 14, .group_chance = 0.2, .backward_chance = 0.3, .max_tensor_bytes = 50});
    const Cluster cluster = equal_devices(2, Bytes(1'000'000), Time(2));
    const CostModel costs(graph, cluster);
    const TopologicalSequence sequence = depth_first_sequence(graph);
    const BlockRow row = make_blocks(costs, sequence, 6);
    const SegmentCosts segments(costs, sequence, row);
    std::vector<std::size_t> at(graph.num_ops());
    for (std::size_t i = 0; i < sequence.size(); ++i) at[sequence[i].index()] = i;

    for (std::size_t first = 0; first < row.num_blocks; ++first) {
      for (std::size_t last = first + 1; last <= row.num_blocks; ++last) {
        const auto inside = [&](OpId op) {
          return first <= row.block_of[op].index() && row.block_of[op].index() < last;
        };
        Time compute, incoming;
        Bytes fixed, scratch;
        std::vector<Bytes> alive(graph.num_ops());
        for (const OpId op : graph.ops()) {
          if (!inside(op)) continue;
          compute += *costs.compute_time(op, DeviceId(0));
          fixed += graph[op].permanent;
          scratch = std::max(scratch, graph[op].temporary);
        }
        for (const TensorId tensor : graph.tensors()) {
          const OpId maker = graph.producer(tensor);
          bool touches = inside(maker), reads = false;
          std::size_t end =
              graph.consumers(tensor).empty() ? graph.num_ops() - 1 : at[maker.index()];
          for (const Edge& edge : graph.consumers(tensor)) {
            reads = reads || inside(edge.to);
            end = std::max(end, at[edge.to.index()]);
          }
          if (reads && !inside(maker)) incoming += Time(2);
          if (touches || reads)
            for (std::size_t i = at[maker.index()]; i <= end; ++i) alive[i] += graph.size(tensor);
        }
        CHECK(segments.compute(first, last, DeviceClassId(0)) == compute);
        CHECK(segments.incoming(first, last) == incoming);
        CHECK(segments.memory(first, last) ==
              fixed + scratch + *std::max_element(alive.begin(), alive.end()));
      }
    }
  }
}

TEST_CASE("chain: pins that change at every operator are refused, not blown up") {
  OpGraphBuilder builder;
  std::optional<TensorId> previous;
  for (int i = 0; i < 3000; ++i) {
    const std::string name = "op" + std::to_string(i);
    const OpId op =
        testing::timed(builder, {.name = name, .pin = i % 2 == 0 ? "gpu:0" : "gpu:1"}, Time(1));
    if (previous.has_value()) builder.connect(*previous, op);
    previous = builder.add_output(op, Bytes(1));
  }
  const OpGraph graph = std::move(builder).build();
  const Cluster cluster = equal_devices(2, Bytes(100'000), Time(1));
  const CostModel costs(graph, cluster);
  CHECK(std::holds_alternative<DoesNotFit>(place_chain(costs, {})));
}

TEST_CASE("chain: random graphs on random clusters keep groups and pins, and repeat") {
  for (std::uint64_t seed = 0; seed < 400; ++seed) {
    CAPTURE(seed);
    const OpGraph graph = random_dag(seed, {.max_ops = 25,
                                            .group_chance = 0.2,
                                            .backward_chance = 0.3,
                                            .pin_chance = 0.05,
                                            .cpu_chance = 0.7});
    const Cluster cluster = random_cluster(seed);
    const CostModel costs(graph, cluster);
    const PlaceResult result = place_chain(costs, {});
    const auto* placed = std::get_if<PlacedGraph>(&result);
    if (placed == nullptr) continue;
    for (const OpId op : graph.ops()) {
      CHECK(costs.may_run(op, placed->device[op]));
      if (graph[op].group.has_value())
        CHECK(placed->device[op] == placed->device[graph.members(*graph[op].group).front()]);
    }
    const PlaceResult again = place_chain(costs, {});
    CHECK(std::get<PlacedGraph>(again).device == placed->device);
    CHECK(std::get<PlacedGraph>(again).order == placed->order);
  }
}

}  // namespace
}  // namespace baechi
