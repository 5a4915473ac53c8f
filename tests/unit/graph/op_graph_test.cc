// SPDX-License-Identifier: Apache-2.0
#include "baechi/graph/op_graph.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <string>

#include "baechi/base/error.h"
#include "baechi/graph/op_graph_builder.h"
#include "unit/graphs.h"
#include "unit/refusal.h"

namespace baechi {
namespace {

using testing::random_dag;
using testing::RandomDag;

std::string error_of(OpGraphBuilder&& builder) {
  return testing::refusal_of([&] { std::move(builder).build(); });
}

OpId add(OpGraphBuilder& builder, std::string_view name) {
  return testing::timed(builder, {.name = name}, Time(1));
}

TEST_CASE("graph: children that read one output share a tensor, ports stay in order") {
  OpGraphBuilder builder("g");
  const OpId b = add(builder, "b"), a = add(builder, "a"), c = add(builder, "c");
  const TensorId a0 = builder.add_output(a, Bytes(10));
  const TensorId b0 = builder.add_output(b, Bytes(20));
  const TensorId a1 = builder.add_output(a, Bytes(30));  // not next to a0: build() sorts
  builder.connect(a1, c);
  builder.connect(a0, c);
  builder.connect(a0, b);
  builder.connect(a0, b);  // twice: one edge
  builder.connect(b0, c);
  builder.add_control_edge(a, c);
  CHECK(builder.output(a, 1) == a1);
  CHECK_FALSE(builder.output(a, 2).has_value());
  const OpGraph graph = std::move(builder).build();

  REQUIRE(graph.num_tensors() == 3);
  CHECK(graph.num_edges() == 5);
  REQUIRE(graph.outputs(a).size() == 2);
  const TensorId first = *graph.outputs(a).begin();
  CHECK(graph.size(first) == Bytes(10));
  CHECK(graph.size(TensorId(first.index() + 1)) == Bytes(30));
  CHECK(graph.producer(first) == a);
  CHECK(graph.consumers(first).size() == 2);
  CHECK(graph.consumers(TensorId(first.index() + 1)).size() == 1);  // not the control edge
  CHECK(graph.output_bytes(a) == Bytes(40));
  CHECK_FALSE(graph.out_edges(a).back().tensor.has_value());
  CHECK(graph.in_edges(c).size() == 4);
  CHECK(std::vector<OpId>(graph.topological_order().begin(), graph.topological_order().end()) ==
        std::vector<OpId>{a, b, c});
  CHECK(graph.find("c") == c);
  CHECK_FALSE(graph.find("d").has_value());
}

TEST_CASE("graph: a cycle is reported with the names on it, and only those") {
  OpGraphBuilder builder;
  const OpId x = add(builder, "x"), a = add(builder, "a"), b = add(builder, "b"),
             c = add(builder, "c"), y = add(builder, "y");
  builder.add_control_edge(x, a);
  builder.add_control_edge(a, b);
  builder.add_control_edge(b, c);
  builder.add_control_edge(c, a);
  builder.add_control_edge(c, y);
  CHECK(error_of(std::move(builder)) ==
        "the graph has a cycle of 3 operators: 'a' -> 'b' -> 'c' -> 'a'");
}

TEST_CASE("graph: what cannot be right is refused with the operator's name") {
  OpGraphBuilder builder;
  const OpId a = add(builder, "a");
  CHECK_THROWS_WITH_AS(add(builder, "a"), "duplicate operator name 'a'", InputError);
  CHECK_THROWS_AS(builder.add_operator({.name = ""}), InputError);
  CHECK_THROWS_WITH_AS(builder.set_time(a, "gpu", Time(-1)),
                       "operator 'a' has a negative compute time: -1 ns", InputError);
  CHECK_THROWS_AS(builder.set_permanent(a, Bytes(-1)), InputError);
  CHECK_THROWS_AS(builder.set_temporary(a, Bytes(-1)), InputError);
  CHECK_THROWS_AS(builder.add_output(a, Bytes(-1)), InputError);
  CHECK_THROWS_AS(builder.add_control_edge(a, a), InputError);
  CHECK_THROWS_AS(builder.connect(builder.add_output(a, Bytes(1)), a), InputError);
  CHECK_THROWS_AS(builder.add_control_edge(a, OpId(7)), InputError);
  CHECK_THROWS_AS(builder.connect(TensorId(7), a), InputError);
  CHECK_THROWS_AS(builder.set_forward(a, a), InputError);
  CHECK_THROWS_AS(builder.set_batch_size(0), InputError);
  builder.add_operator({.name = "idle"});
  CHECK(error_of(std::move(builder)) == "operator 'idle' has no compute time on any device kind");
  CHECK(error_of(OpGraphBuilder()) == "the graph has no operators");
}

TEST_CASE("graph: colocation groups that share a member merge, and pins within one must agree") {
  OpGraphBuilder builder;
  const OpId a = add(builder, "a"), b = add(builder, "b"), c = add(builder, "c"),
             d = add(builder, "d");
  builder.add_to_group(c, "g1");
  builder.add_to_group(b, "g2");
  builder.add_to_group(d, "g1");
  builder.add_to_group(d, "g2");
  builder.set_pin(b, "gpu:0");
  builder.set_pin(d, "gpu:1");
  CHECK(error_of(std::move(builder)) ==
        "operators 'b' and 'd' are colocated but pinned to different devices, 'gpu:0' and 'gpu:1'");

  OpGraphBuilder fine;
  add(fine, "a"), add(fine, "b"), add(fine, "c"), add(fine, "d");
  fine.add_to_group(c, "g1");
  fine.add_to_group(b, "g2");
  fine.add_to_group(d, "g1");
  fine.add_to_group(d, "g2");
  const OpGraph graph = std::move(fine).build();
  REQUIRE(graph.num_groups() == 1);
  CHECK_FALSE(graph[a].group.has_value());
  CHECK(graph[d].group == graph[b].group);
  CHECK(graph.members(GroupId(0)).size() == 3);
  CHECK(graph.colocation_names(d).size() == 2);
  CHECK(graph.colocation_names(a).empty());
}

TEST_CASE("graph: rows, consumers and order agree on 500 random graphs") {
  for (std::uint64_t seed = 0; seed < 500; ++seed) {
    CAPTURE(seed);
    const OpGraph graph = random_dag(seed, {.max_ops = 30, .group_chance = 0.3});
    std::size_t in_edges = 0, consumers = 0, data_edges = 0;
    IdVector<OpId, std::size_t> rank(graph.num_ops());
    for (std::size_t i = 0; i < graph.num_ops(); ++i) rank[graph.topological_order()[i]] = i;
    for (const OpId op : graph.ops()) {
      in_edges += graph.in_edges(op).size();
      for (const Edge& edge : graph.out_edges(op)) {
        CHECK(edge.from == op);
        CHECK(rank[edge.from] < rank[edge.to]);
        const auto row = graph.in_edges(edge.to);
        CHECK(std::count(row.begin(), row.end(), edge) == 1);
        if (!edge.tensor.has_value()) continue;
        ++data_edges;
        CHECK(graph.producer(*edge.tensor) == op);
      }
    }
    for (const TensorId tensor : graph.tensors()) {
      consumers += graph.consumers(tensor).size();
      for (const Edge& edge : graph.consumers(tensor)) CHECK(edge.tensor == tensor);
    }
    CHECK(in_edges == graph.num_edges());
    CHECK(consumers == data_edges);
  }
}

}  // namespace
}  // namespace baechi
