// SPDX-License-Identifier: Apache-2.0
#include "baechi/optimize/coplacement.h"

#include <doctest/doctest.h>

#include <numeric>
#include <set>

#include "baechi/graph/op_graph_builder.h"
#include "baechi/optimize/colocation.h"
#include "baechi/optimize/grouping.h"
#include "unit/graph_sketch.h"
#include "unit/graphs.h"
#include "unit/simulate/small_clusters.h"

namespace baechi {
namespace {

const Cluster& two_devices() {
  static const Cluster cluster = testing::equal_devices(2, Bytes(100), Time(1));
  return cluster;
}

//   x --> f -+-> g     f is read by g and by f', its backward; g only by g', x only by f
//            |   |
//       f' <-+- g'
// Ten of time and ten bytes of output each.
OpGraph forward_and_backward() {
  OpGraphBuilder builder("training");
  const auto add = [&](const char* name) {
    return testing::timed(builder, {.name = name}, Time(10));
  };
  const OpId x = add("x"), f = add("f"), g = add("g"), gb = add("g'"), fb = add("f'");
  builder.connect(builder.add_output(x, Bytes(10)), f);
  const TensorId out = builder.add_output(f, Bytes(10));
  builder.connect(out, g);
  builder.connect(out, fb);
  builder.connect(builder.add_output(g, Bytes(10)), gb);
  builder.connect(builder.add_output(gb, Bytes(10)), fb);
  builder.set_forward(gb, g);
  builder.set_forward(fb, f);
  return std::move(builder).build();
}

const CoplacementOptions kUncapped{
    .rule = CoplacementRule::kNeighbours, .memory_share = 1e6, .work_share = 1e6};

TEST_CASE("coplacement: an operator joins its only consumer") {
  const OpGraph graph = forward_and_backward();
  CoplacementOptions options = kUncapped;
  options.backward_to_forward = false;
  const Coplacement found =
      find_coplacements(CostModel(graph, two_devices()), each_alone(graph), options);
  CHECK(found.by_consumer == 3);
  CHECK(found.group[OpId(0)] == found.group[OpId(1)]);  // x, f
  CHECK(found.group[OpId(1)] != found.group[OpId(2)]);
  CHECK(found.group[OpId(2)] == found.group[OpId(3)]);  // g, g'
  CHECK(found.group[OpId(3)] == found.group[OpId(4)]);  // g', f'
}

TEST_CASE("coplacement: a backward operator joins its forward operator") {
  const OpGraph graph = forward_and_backward();
  CoplacementOptions options = kUncapped;
  options.single_consumer = false;
  const Coplacement found =
      find_coplacements(CostModel(graph, two_devices()), each_alone(graph), options);
  CHECK(found.by_forward == 2);
  CHECK(found.group[OpId(1)] == found.group[OpId(4)]);
  CHECK(found.group[OpId(2)] == found.group[OpId(3)]);
  CHECK(found.group[OpId(0)] != found.group[OpId(1)]);
  CHECK(found.group[OpId(1)] != found.group[OpId(2)]);
}

TEST_CASE("coplacement: names say which cell or attention an operator is of") {
  CHECK(cell_of("enc/cell_12/t7/MatMul") == "enc/cell_12");
  CHECK(cell_of("dec/cell_0/kernel") == "dec/cell_0");
  CHECK(cell_of("attention/t3/Softmax") == "attention");
  for (const char* other : {"projection/MatMul", "enc/cell_", "enc/cell_x/t1", "cell/t1", "", "/"})
    CHECK(cell_of(other).empty());
}

// e > a/b feed c, and z reads c alone; the backward of c is c'.
TEST_CASE("coplacement: of a recurrent model cells and attention are groups, and nothing else") {
  OpGraphBuilder builder("cells");
  const auto add = [&](const char* name) {
    return testing::timed(builder, {.name = name}, Time(1));
  };
  const OpId e = add("embedding"), a = add("enc/cell_0/kernel"), b = add("enc/cell_0/t0/MatMul"),
             c = add("enc/cell_1/t0/MatMul"), z = add("projection"), back = add("gradients/c");
  for (const auto& [from, to] : {std::pair(e, b), {a, b}, {b, c}, {c, z}, {z, back}})
    builder.connect(builder.add_output(from, Bytes(1)), to);
  builder.set_forward(back, c);
  const OpGraph graph = std::move(builder).build();
  CoplacementOptions options = kUncapped;
  options.cells_alone = true;
  const OpLabels group =
      find_coplacements(CostModel(graph, two_devices()), each_alone(graph), options).group;
  CHECK(group[a] == group[b]);
  CHECK(group[c] == group[back]);
  CHECK(std::set<std::uint32_t>(group.begin(), group.end()).size() == 4);  // and e, z alone
}

TEST_CASE("coplacement: a model with attention and no cells is none of those") {
  const OpGraph graph =
      testing::GraphSketch()
          .ops({{"embedding", 1}, {"layer_0/attention/query", 1}, {"layer_0/norm", 1}})
          .tensors({{"embedding", 4, {"layer_0/attention/query"}},
                    {"layer_0/attention/query", 4, {"layer_0/norm"}}})
          .build();
  CoplacementOptions options = kUncapped;
  options.cells_alone = true;
  CHECK(
      find_coplacements(CostModel(graph, two_devices()), each_alone(graph), options).by_consumer ==
      2);
}

TEST_CASE("coplacement: no union exceeds a cap, colocation groups excepted") {
  std::size_t capped = 0, united = 0;
  for (std::uint64_t seed = 1; seed <= 600; ++seed) {
    CAPTURE(seed);
    const OpGraph graph = testing::random_dag(
        seed, {.max_ops = 24, .edge_chance = 0.12, .group_chance = 0.3, .backward_chance = 0.4});
    const CostModel costs(graph, two_devices());
    const CoplacementOptions options{
        .rule = CoplacementRule::kNeighbours, .memory_share = 0.4, .work_share = 0.5};
    const Coplacement found = find_coplacements(costs, group_labels(graph), options);
    capped += found.capped;
    united += found.by_consumer + found.by_forward;

    const IdVector<OpId, Time> work = mean_work(costs);
    const Time total = std::accumulate(work.begin(), work.end(), Time(0));
    const OpLabels given = group_labels(graph);
    const Contracted small = contract(graph, each_alone(graph), found.group);
    const IdVector<GroupId, Bytes> memory = group_memory(small.graph);
    for (const GroupId group : small.graph.groups()) {
      Time sum;
      bool grown = false;
      const OpId first = small.expansion.members(small.graph.members(group).front()).front();
      for (const OpId op : small.graph.members(group)) {
        const OpId old = small.expansion.members(op).front();
        sum += work[old];
        grown = grown || given[old] != given[first];
      }
      if (!grown) continue;
      CHECK(2 * static_cast<double>(sum.count()) * 2 <= static_cast<double>(total.count()) + 4);
      CHECK(memory[group] <= Bytes(100));  // the cap is on an estimate, without received copies
    }
    for (const OpId op : graph.ops())
      for (const OpId other : graph.ops())
        if (given[op] == given[other]) CHECK(found.group[op] == found.group[other]);
  }
  CHECK(capped > 500);
  CHECK(united > 500);
}

TEST_CASE("coplacement: a cut gives at most one group per device, and falls back where none fits") {
  const OpGraph graph = forward_and_backward();
  const Cluster roomy = testing::unit_latency_cluster(2, Bytes(1'000));
  const Coplacement cut = find_coplacements(CostModel(graph, roomy), each_alone(graph), {});
  CHECK(cut.cut.has_value());
  CHECK(std::set<std::uint32_t>(cut.group.begin(), cut.group.end()).size() <= 2);
  const Cluster tight = testing::unit_latency_cluster(2, Bytes(15));
  const Coplacement fallen = find_coplacements(CostModel(graph, tight), each_alone(graph), {});
  CHECK_FALSE(fallen.cut.has_value());
}

TEST_CASE("coplacement: operators that no device can run together stay apart") {
  OpGraphBuilder builder("apart");
  const auto add = [&](const char* name, const char* kind) {
    const OpId op = builder.add_operator({.name = name});
    builder.set_time(op, kind, Time(1));
    return op;
  };
  const OpId a = add("a", "gpu"), b = add("b", "cpu"), c = add("c", "gpu"), d = add("d", "gpu");
  builder.connect(builder.add_output(a, Bytes(1)), b);
  builder.connect(builder.add_output(c, Bytes(1)), d);
  builder.set_pin(c, "gpu:0");
  builder.set_pin(d, "gpu:1");
  const OpGraph graph = std::move(builder).build();
  const Cluster cluster = testing::equal_devices(2, Bytes(1'000), Time(1));
  const Coplacement found =
      find_coplacements(CostModel(graph, cluster), each_alone(graph), kUncapped);
  CHECK(found.by_consumer == 0);
  CHECK(found.capped == 2);
}

TEST_CASE("coplacement: who reads two outputs of an operator is one consumer") {
  const OpGraph graph = testing::GraphSketch()
                            .ops({{"a", 1}, {"b", 1}, {"c", 9}, {"d", 9}})
                            .tensors({{"a", 4, {"b"}}, {"a", 5, {"b"}}})
                            .build();
  const Cluster cluster = testing::equal_devices(2, Bytes(100), Time(1));
  const Coplacement found = find_coplacements(CostModel(graph, cluster), group_labels(graph),
                                              {.rule = CoplacementRule::kNeighbours});
  CHECK(found.by_consumer == 1);
  CHECK(found.group[OpId(0)] == found.group[OpId(1)]);
}

}  // namespace
}  // namespace baechi
