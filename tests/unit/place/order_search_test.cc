// SPDX-License-Identifier: Apache-2.0
#include "baechi/place/exact/order_search.h"

#include <doctest/doctest.h>

#include <string>

#include "baechi/graph/op_graph_builder.h"
#include "baechi/place/exact/placement_bound.h"
#include "unit/graphs.h"

namespace baechi {
namespace {

// a (5 ns, hands 6 bytes to c) --> z (no time, `temporary` bytes) --> c (5 ns), on one device.
OpGraph with_a_moment(Bytes temporary) {
  OpGraphBuilder builder;
  const auto add = [&](const char* name, std::int64_t time, Bytes bytes) {
    return testing::timed(builder, {.name = name, .temporary = bytes}, Time(time));
  };
  const OpId a = add("a", 5, Bytes(0)), z = add("z", 0, temporary), c = add("c", 5, Bytes(0));
  builder.connect(builder.add_output(a, Bytes(6)), c);
  builder.add_control_edge(a, z);
  builder.add_control_edge(z, c);
  return std::move(builder).build();
}

int orders_told(const OpGraph& graph, Bytes capacity) {
  const Cluster cluster = testing::unit_latency_cluster(1, capacity);
  const CostModel costs(graph, cluster);
  const exact::Instance instance = *exact::tabulate(costs);
  exact::OrderSearch search(instance);
  int told = 0;
  const bool searched = search.run(
      std::vector<exact::Index>(graph.num_ops(), 0), std::vector<exact::Ns>(graph.num_ops(), 0),
      exact::kNever, [&](const PlacedGraph&, exact::Ns) { return ++told > 0; },
      [] { return false; });
  CHECK(searched);
  return told;
}

TEST_CASE("order search: what takes no time still takes its memory, at one moment") {
  CHECK(orders_told(with_a_moment(Bytes(4)), Bytes(10)) == 1);
  CHECK(orders_told(with_a_moment(Bytes(6)), Bytes(10)) == 0);
}

TEST_CASE(
    "placement bound: inputs made one after the other wait for the one before and for theirs") {
  // 5, 7 and 3 ns in a chain: each starts when the one before has ended.
  const OpGraph graph = testing::chain({Time(5), Time(7), Time(3)}, Bytes(0));
  const Cluster cluster = testing::unit_latency_cluster(1, Bytes(10));
  const CostModel costs(graph, cluster);
  const exact::Instance instance = *exact::tabulate(costs);
  exact::PlacementBound bound(instance);
  std::vector<exact::DeviceSet> domain(3, exact::only(0));
  CHECK(bound.tighten(domain, exact::kNever) == 15);
  CHECK(bound.heads() == std::vector<exact::Ns>{0, 5, 12});
  CHECK(bound.tails() == std::vector<exact::Ns>{10, 3, 0});
}

}  // namespace
}  // namespace baechi
