// SPDX-License-Identifier: Apache-2.0
#include "baechi/place/partition/balance.h"

#include <doctest/doctest.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "baechi/base/processor_time.h"
#include "baechi/base/random.h"
#include "baechi/cost/cost_model.h"
#include "baechi/generate/generate.h"
#include "baechi/graph/op_graph_builder.h"
#include "baechi/place/partition/hypergraph.h"
#include "unit/graphs.h"
#include "unit/simulate/small_clusters.h"

namespace baechi {
namespace {

Cluster devices(std::size_t count, Bytes capacity) {
  return testing::equal_devices(count, capacity, microseconds(50), Bandwidth(6'000'000'000));
}

// Some vertices on devices that no vertex may go to.
Parts scattered(const Hypergraph& graph, std::size_t num_devices, Random& random) {
  Parts parts;
  for ([[maybe_unused]] const Vertex& vertex : graph.vertices)
    parts.push_back(DeviceId(random.below(num_devices)));
  return parts;
}

double value_of(const Parts& parts, Balance balance) {
  balance.load(parts);
  return balance.value();
}

// What moves leave is kept up from move to move.
TEST_CASE("balance: after many moves it is what the parts make it") {
  for (const std::uint64_t seed : {1U, 2U, 3U}) {
    CAPTURE(seed);
    const OpGraph graph = generate_graph("layered", {.operators = 600, .seed = seed});
    const Cluster cluster = devices(20, mebibytes(20));
    const CostModel costs(graph, cluster);
    const Hypergraph vertices = make_hypergraph(costs).graph;
    std::vector<DeviceId> used;
    for (const DeviceId device : cluster.devices())
      if (device.index() % 3 != 1) used.push_back(device);
    Random random(seed);
    Balance balance(costs, vertices, used, {.queue = 0.5, .traffic = 0.2}, 0.95);
    const Balance fresh = balance;
    balance.load(scattered(vertices, cluster.num_devices(), random));
    const double before = balance.value();
    for (int pass = 0; pass < 3; ++pass) CHECK(balance.improve(random));
    CHECK(balance.value() < before);
    CHECK(balance.value() == value_of(balance.parts(), fresh));
  }
}

// Most moves are turned down by sums that are kept up, without looking at all devices.
TEST_CASE("balance: it ends where no move of one vertex is better") {
  for (const std::uint64_t seed : {1U, 2U, 3U, 4U, 5U}) {
    for (const Bytes capacity : {mebibytes(4), gibibytes(8)}) {
      CAPTURE(seed);
      const OpGraph graph = generate_graph("layered", {.operators = 60, .seed = seed});
      const Cluster cluster = devices(5, capacity);
      const CostModel costs(graph, cluster);
      const Hypergraph vertices = make_hypergraph(costs).graph;
      const std::vector<DeviceId> all(cluster.devices().begin(), cluster.devices().end());
      Random random(seed);
      Balance balance(costs, vertices, all, {.queue = 1, .traffic = 1}, 0.95);
      const Balance fresh = balance;
      balance.load(scattered(vertices, cluster.num_devices(), random));
      while (balance.improve(random)) {
      }
      const double end = balance.value();
      for (const VertexId vertex : vertices.vertices.keys())
        for (const DeviceId device : all) {
          Parts moved = balance.parts();
          moved[vertex] = device;
          CHECK(value_of(moved, fresh) >= end * (1 - 1e-9));
        }
    }
  }
}

// Eight times the readers: eight times the vertices that may move, each to where the others are.
TEST_CASE("balance: a reader is not asked where all other readers are, one by one") {
  const auto takes = [](std::size_t num_readers) {
    OpGraphBuilder builder;
    const OpId maker = testing::timed(builder, {.name = "made"}, Time(100));
    const TensorId read = builder.add_output(maker, Bytes(4096));
    for (std::size_t i = 0; i < num_readers; ++i) {
      const OpId reader =
          testing::timed(builder, {.name = "reader" + std::to_string(i)}, Time(100));
      builder.connect(read, reader);
    }
    const OpGraph graph = std::move(builder).build();
    const Cluster cluster = devices(16, gibibytes(8));
    const CostModel costs(graph, cluster);
    const Hypergraph vertices = make_hypergraph(costs).graph;
    const std::vector<DeviceId> all(cluster.devices().begin(), cluster.devices().end());
    Random random(1);
    Balance balance(costs, vertices, all, {.queue = 1, .traffic = 1}, 0.95);
    balance.load(scattered(vertices, cluster.num_devices(), random));
    const std::chrono::nanoseconds begin = processor_time_of_thread();
    balance.improve(random);
    return processor_time_of_thread() - begin;
  };
  CHECK(takes(32'000) < 24 * takes(4'000));
}

}  // namespace
}  // namespace baechi
