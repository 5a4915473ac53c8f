// SPDX-License-Identifier: Apache-2.0
#include "baechi/graph/recosted.h"

#include <doctest/doctest.h>

#include <utility>
#include <vector>

#include "baechi/base/error.h"
#include "baechi/graph/op_graph_builder.h"
#include "baechi/io/graph/write_graph.h"
#include "unit/graphs.h"

namespace baechi::testing {
namespace {

TEST_CASE("recosted: without a change the graph stays the same, ids and all") {
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    CAPTURE(seed);
    const OpGraph graph = random_dag(seed, {.max_ops = 20,
                                            .group_chance = 0.3,
                                            .backward_chance = 0.3,
                                            .pin_chance = 0.2,
                                            .cpu_chance = 0.5,
                                            .memory_mode = MemoryMode::kRetain});
    CHECK(graph_to_json(recosted(graph, {})) == graph_to_json(graph));
  }
}

// a -> b -> c -> d, a -> d, a ..> c; c is the backward operator of a, d that of b. Of b, c and d only
// what is between them stays.
TEST_CASE("subgraph: keeps operators as they are, and the edges between them") {
  OpGraphBuilder builder("whole");
  std::vector<OpId> ops;
  std::vector<TensorId> out;
  for (const char* name : {"a", "b", "c", "d"}) {
    ops.push_back(
        timed(builder, {.name = name, .permanent = Bytes(3), .per_step = true}, Time(10)));
    out.push_back(builder.add_output(ops.back(), Bytes(5)));
  }
  builder.connect(out[0], ops[1]);
  builder.connect(out[1], ops[2]);
  builder.connect(out[2], ops[3]);
  builder.connect(out[0], ops[3]);
  builder.add_control_edge(ops[0], ops[2]);
  builder.set_forward(ops[2], ops[0]);
  builder.set_forward(ops[3], ops[1]);
  const OpGraph graph = std::move(builder).build();

  const OpGraph part = subgraph(graph, std::vector<OpId>{ops[1], ops[3], ops[2]});
  REQUIRE(part.num_ops() == 3);
  CHECK(part[OpId(0)].name == "b");
  CHECK(part[OpId(1)].name == "d");
  CHECK(part[OpId(1)].permanent == Bytes(3));
  CHECK(part[OpId(1)].per_step == true);
  CHECK(part.num_edges() == 2);
  CHECK(part.num_tensors() == 3);
  CHECK(part[OpId(1)].forward == OpId(0));
  CHECK_FALSE(part[OpId(2)].forward.has_value());
  CHECK(part[OpId(2)].backward);
  std::vector<OpId> all(graph.ops().begin(), graph.ops().end());
  CHECK(graph_to_json(subgraph(graph, all)) == graph_to_json(graph));
}

// w (a variable) -> read -> mul <- data; mul -> loss
TEST_CASE("recosted: with another batch size, variables and what reads only them stay") {
  OpGraphBuilder builder("batched");
  builder.set_batch_size(4);
  const OpId w = timed(builder, {.name = "w", .permanent = Bytes(100)}, Time(10));
  const OpId read = timed(builder, {.name = "read"}, Time(10));
  const OpId data = timed(builder, {.name = "data"}, Time(10));
  const OpId mul =
      timed(builder, {.name = "mul", .permanent = Bytes(7), .temporary = Bytes(5)}, Time(10));
  const TensorId weights = builder.add_output(w, Bytes(50)),
                 copy = builder.add_output(read, Bytes(50)),
                 input = builder.add_output(data, Bytes(20));
  builder.add_output(mul, Bytes(9));
  builder.connect(weights, read);
  builder.connect(copy, mul);
  builder.connect(input, mul);
  const OpGraph graph = std::move(builder).build();

  const OpGraph half = with_batch_size(graph, 2);
  const KindId gpu = *half.find_kind("gpu");
  CHECK(half.batch_size() == 2);
  CHECK(half.times(gpu)[w] == Time(10));
  CHECK(half.times(gpu)[read] == Time(10));
  CHECK(half.times(gpu)[data] == Time(5));
  CHECK(half.times(gpu)[mul] == Time(5));
  CHECK(half.output_bytes(w) == Bytes(50));
  CHECK(half.output_bytes(read) == Bytes(50));
  CHECK(half.output_bytes(data) == Bytes(10));
  CHECK(half.output_bytes(mul) == Bytes(5));  // 4.5, rounded up
  CHECK(half[mul].temporary == Bytes(3));
  CHECK(half[mul].permanent == Bytes(7));
  CHECK_THROWS_AS(with_batch_size(graph, 0), InputError);
  CHECK_THROWS_WITH_AS(with_batch_size(figure_1(), 2), doctest::Contains("batch_size"), InputError);
}

}  // namespace
}  // namespace baechi::testing
