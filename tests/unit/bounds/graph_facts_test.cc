// SPDX-License-Identifier: Apache-2.0
#include "baechi/bounds/graph_facts.h"

#include <doctest/doctest.h>

#include "baechi/graph/op_graph_builder.h"
#include "unit/graphs.h"
#include "unit/simulate/small_clusters.h"

namespace baechi {
namespace {

TEST_CASE("facts: figure 1 counted by hand") {
  const OpGraph graph = testing::figure_1();
  const GraphFacts facts = graph_facts(graph);
  CHECK(facts.num_ops == 6);
  CHECK(facts.num_edges == 6);
  CHECK(facts.num_control_edges == 0);
  CHECK(facts.num_tensors == 5);  // d has no output
  CHECK(facts.depth == 4);
  CHECK(facts.width == 2);
  CHECK(facts.critical_path == Time(8));
  CHECK(facts.work == Time(12));
  CHECK(facts.parallelism() == 1.5);
  CHECK(facts.kinds == std::vector<KindWork>{{"gpu", 6, Time(12)}});
  CHECK(facts.permanent == Bytes(8));
  CHECK(facts.outputs == Bytes(0));
  CHECK(facts.total_memory() == Bytes(8));
  CHECK(facts.largest_need == Bytes(2));
  CHECK(facts.largest_op == OpId(1));

  const Cluster cluster = testing::unit_latency_cluster(2, Bytes(4));
  const ClusterFacts on_two = cluster_facts(CostModel(graph, cluster));
  CHECK(on_two.rho == 1.0);
  CHECK(on_two.sct_assumption);
  CHECK(on_two.total_capacity == Bytes(8));
  CHECK_FALSE(on_two.fits_one_device);
  const Cluster roomy = testing::unit_latency_cluster(2, Bytes(8));
  CHECK(cluster_facts(CostModel(graph, roomy)).fits_one_device);
}

// w (5 on gpu, 9 on cpu) -> b (2 anywhere), the backward of w; c is pinned and runs on tpu only.
OpGraph mixed() {
  OpGraphBuilder builder;
  const OpId w = builder.add_operator({.name = "w", .permanent = Bytes(10), .temporary = Bytes(3)});
  const OpId b = builder.add_operator({.name = "b", .temporary = Bytes(7), .forward = w});
  const OpId c = builder.add_operator({.name = "c", .pin = "gpu:1"});
  builder.set_time(w, "gpu", Time(5));
  builder.set_time(w, "cpu", Time(9));
  builder.set_time(b, "*", Time(2));
  builder.set_time(c, "tpu", Time(4));
  builder.connect(builder.add_output(w, Bytes(20)), b);
  builder.add_control_edge(w, c);
  builder.add_to_group(w, "g");
  builder.add_to_group(b, "g");
  return std::move(builder).build();
}

TEST_CASE("facts: kinds, groups, passes, pins and control edges are told apart") {
  const OpGraph graph = mixed();
  const GraphFacts facts = graph_facts(graph);
  CHECK(facts.num_control_edges == 1);
  CHECK(facts.num_groups == 1);
  CHECK(facts.num_grouped_ops == 2);
  CHECK(facts.largest_group == 2);
  CHECK(facts.num_backward_ops == 1);
  CHECK(facts.num_pinned_ops == 1);
  CHECK(facts.work == Time(11));
  CHECK(facts.critical_path == Time(9));
  CHECK(facts.kinds.size() == 4);
  CHECK(facts.largest_need == Bytes(33));
  CHECK(facts.total_memory() == Bytes(37));

  const Cluster cluster = testing::equal_devices(2, Bytes(99), Time(8));
  const ClusterFacts on = cluster_facts(CostModel(graph, cluster));
  CHECK(on.num_unplaceable_ops == 1);
  CHECK_FALSE(on.fits_one_device);
  CHECK(on.rho == 4.0);
  CHECK_FALSE(on.sct_assumption);
}

}  // namespace
}  // namespace baechi
