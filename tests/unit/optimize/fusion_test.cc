// SPDX-License-Identifier: Apache-2.0
#include "baechi/optimize/fusion.h"

#include <doctest/doctest.h>

#include "baechi/graph/op_graph_builder.h"
#include "baechi/optimize/mean_link.h"
#include "unit/graphs.h"
#include "unit/simulate/small_clusters.h"

namespace baechi {
namespace {

Cluster two_devices(Time latency) { return testing::equal_devices(2, Bytes(1'000), latency); }

// a -> b -> c -> d, 10 ns each, all in one group but d.
OpGraph grouped_chain() {
  OpGraphBuilder builder("chain");
  std::optional<TensorId> previous;
  for (const char* name : {"a", "b", "c", "d"}) {
    const OpId op = testing::timed(builder, {.name = name}, Time(10));
    if (name[0] != 'd') builder.add_to_group(op, "abc");
    if (previous.has_value()) builder.connect(*previous, op);
    previous = builder.add_output(op, Bytes(8));
  }
  return std::move(builder).build();
}

TEST_CASE("fusion: stays within a group") {
  const OpGraph graph = grouped_chain();
  const Cluster cluster = two_devices(Time(100));
  const Optimized fused = fuse(CostModel(graph, cluster));
  REQUIRE(fused.graph.num_ops() == 2);
  CHECK(fused.expansion.members(OpId(0)).size() == 3);
  REQUIRE(fused.passes.size() == 1);
  CHECK(fused.passes[0].before == PassStatistics::Size{4, 3, 1});
  CHECK(fused.passes[0].after == PassStatistics::Size{2, 1, 0});
}

TEST_CASE("fusion: a meta-operator computes no longer than the grain allows") {
  const OpGraph graph = grouped_chain();
  const Cluster cluster = two_devices(Time(5));  // to send anything takes 5 ns
  CHECK(fuse(CostModel(graph, cluster), {.grain = 3.9}).graph.num_ops() == 4);
  CHECK(fuse(CostModel(graph, cluster), {.grain = 4}).graph.num_ops() == 3);
  CHECK(fuse(CostModel(graph, cluster), {.grain = 6}).graph.num_ops() == 2);
  const Cluster one = testing::unit_latency_cluster(1, Bytes(1));
  CHECK(fuse(CostModel(graph, one), {.grain = 0.1}).graph.num_ops() == 2);
}

TEST_CASE(
    "fusion: forward and backward operators stay apart, and so do kinds that share no device") {
  OpGraphBuilder builder("apart");
  const auto add = [&](const char* name, const char* kind, bool backward) {
    const OpId op = builder.add_operator({.name = name, .backward = backward});
    builder.set_time(op, kind, Time(1));
    builder.add_to_group(op, "all");
    return op;
  };
  const OpId a = add("a", "gpu", false), b = add("b", "gpu", true), c = add("c", "cpu", true);
  builder.connect(builder.add_output(a, Bytes(1)), b);
  builder.connect(builder.add_output(b, Bytes(1)), c);
  const OpGraph graph = std::move(builder).build();
  ClusterSpec spec = testing::equal_devices(2, Bytes(1'000), Time(100)).spec();
  spec.devices[1].kind = "cpu";
  const Cluster cluster{spec};
  CHECK(fuse(CostModel(graph, cluster)).graph.num_ops() == 3);
}

TEST_CASE("fusion: the typical tensor is the median of those that somebody reads") {
  OpGraphBuilder builder("median");
  const OpId a = testing::timed(builder, {.name = "a"}, Time(1)),
             b = testing::timed(builder, {.name = "b"}, Time(1));
  for (const int bytes : {1, 2, 9}) builder.connect(builder.add_output(a, Bytes(bytes)), b);
  builder.add_output(b, Bytes(1'000));
  const OpGraph graph = std::move(builder).build();
  const Cluster cluster = testing::equal_devices(2, Bytes(1), Time(10), Bandwidth(500'000'000));
  CHECK(typical_transfer_time(graph, MeanLink(cluster)) == Time(10 + 2 * 2));
  const Cluster one = testing::unit_latency_cluster(1, Bytes(1));
  CHECK(typical_transfer_time(graph, MeanLink(one)) == Time(0));
}

}  // namespace
}  // namespace baechi
