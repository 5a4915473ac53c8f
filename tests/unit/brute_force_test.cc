// SPDX-License-Identifier: Apache-2.0
#include "unit/brute_force.h"

#include <doctest/doctest.h>

#include "baechi/graph/op_graph_builder.h"
#include "unit/graphs.h"
#include "unit/simulate/small_clusters.h"

namespace baechi {
namespace {

using testing::feasible;
using testing::optimal_makespan;

// Paper Figure 1.
TEST_CASE("oracle: figure 1 takes 8 time units, and 9 when a device holds only 4 memory units") {
  const OpGraph graph = testing::figure_1();
  CHECK(optimal_makespan(graph, testing::unit_latency_cluster(2, Bytes(100)))->makespan == Time(8));
  CHECK(optimal_makespan(graph, testing::unit_latency_cluster(2, Bytes(4)))->makespan == Time(9));
  CHECK_FALSE(optimal_makespan(graph, testing::unit_latency_cluster(2, Bytes(3))).has_value());
  CHECK_FALSE(feasible(graph, testing::unit_latency_cluster(2, Bytes(3))));
  CHECK(feasible(graph, testing::unit_latency_cluster(3, Bytes(3))));
}

TEST_CASE("oracle: one queue per device serves transfers one after the other") {
  // src and its two consumers, each pinned to a device of its own.
  OpGraphBuilder builder;
  const OpId src = testing::timed(builder, {.name = "src", .pin = "gpu:0"}, Time(10));
  const OpId left = testing::timed(builder, {.name = "left", .pin = "gpu:1"}, Time(10));
  const OpId right = testing::timed(builder, {.name = "right", .pin = "gpu:2"}, Time(10));
  const TensorId tensor = builder.add_output(src, Bytes(1));
  builder.connect(tensor, left);
  builder.connect(tensor, right);
  const OpGraph graph = std::move(builder).build();
  const auto makespan = [&](CommunicationMode mode) {
    return optimal_makespan(
               graph,
               Cluster(uniform_cluster(
                   {.count = 3, .capacity = Bytes(2), .latency = Time(7), .communication = mode})))
        ->makespan;
  };
  CHECK(makespan(CommunicationMode::kParallel) == Time(27));
  CHECK(makespan(CommunicationMode::kSequential) == Time(34));
  CHECK(makespan(CommunicationMode::kDuplex) == Time(34));
}

TEST_CASE("oracle: memory decides between two devices and one") {
  // a -> b -> c with tensors of 4 bytes: one device holds two tensors while b runs.
  const OpGraph graph = testing::chain({Time(5), Time(5), Time(5)}, Bytes(4), Bytes(2));
  const auto cluster = [](Bytes capacity, std::size_t count = 2) {
    return testing::equal_devices(count, capacity, Time(3));
  };
  CHECK(optimal_makespan(graph, cluster(Bytes(14)))->makespan == Time(15));
  CHECK(optimal_makespan(graph, cluster(Bytes(13)))->makespan == Time(18));
  // Two neighbors need 12 bytes, and b alone its own 2 and two tensors.
  CHECK(optimal_makespan(graph, cluster(Bytes(12)))->makespan == Time(18));
  CHECK_FALSE(optimal_makespan(graph, cluster(Bytes(11))).has_value());
  CHECK(optimal_makespan(graph, cluster(Bytes(11), 3))->makespan == Time(21));
  CHECK(optimal_makespan(graph, cluster(Bytes(10), 3))->makespan == Time(21));
  CHECK_FALSE(optimal_makespan(graph, cluster(Bytes(9), 3)).has_value());
}

}  // namespace
}  // namespace baechi
