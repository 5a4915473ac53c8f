// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "baechi/base/random.h"
#include "baechi/graph/op_graph_builder.h"
#include "baechi/graph/unroll.h"
#include "baechi/place/kept_together.h"
#include "baechi/place/pipeline/blocks.h"
#include "baechi/place/pipeline/items.h"
#include "baechi/place/pipeline/pipeline.h"
#include "baechi/place/topological_sequences.h"
#include "baechi/simulate/execution_simulator.h"
#include "unit/graphs.h"
#include "unit/simulate/small_clusters.h"

namespace baechi::pipeline {
namespace {

constexpr std::size_t kLayers = 3, kTimes = 4;

struct Recurrent {
  std::optional<OpGraph> made;
  const OpGraph& graph() const { return *made; }
  std::vector<OpId> variable, update, sum;  // by layer
  std::vector<std::vector<OpId>> cell;      // by layer and time step
};

// Every layer reads one variable in each of its time steps, and its own and the layer below's
// output. A sum of the gradients of all time steps goes to the variable's update, which waits for
// the norm of all gradients. Variable, sum and update are a colocation group.
Recurrent recurrent(Bytes weights, Bytes state) {
  OpGraphBuilder builder("recurrent");
  Recurrent result;
  const auto add = [&](const std::string& name, std::int64_t time, bool per_step, bool backward) {
    return testing::timed(builder,
                          {.name = name, .backward = backward && !per_step, .per_step = per_step},
                          Time(time));
  };
  std::vector<TensorId> read;
  std::vector<std::vector<TensorId>> out(kLayers);
  std::vector<std::vector<OpId>> gradient(kLayers, std::vector<OpId>(kTimes, OpId(0)));
  for (std::size_t l = 0; l < kLayers; ++l) {
    result.variable.push_back(add("v" + std::to_string(l), 0, true, false));
    builder.set_permanent(result.variable[l], weights);
    read.push_back(builder.add_output(result.variable[l], weights));
  }
  result.cell.resize(kLayers);
  for (std::size_t l = 0; l < kLayers; ++l)
    for (std::size_t t = 0; t < kTimes; ++t) {
      const OpId op = add("f" + std::to_string(l) + "/" + std::to_string(t), 1'000, false, false);
      result.cell[l].push_back(op);
      out[l].push_back(builder.add_output(op, state));
      builder.connect(read[l], op);
      if (l > 0) builder.connect(out[l - 1][t], op);
      if (t > 0) builder.connect(out[l][t - 1], op);
    }
  std::vector<std::vector<TensorId>> by_weights(kLayers);
  std::vector<std::vector<TensorId>> back(kLayers, std::vector<TensorId>(kTimes, TensorId(0)));
  for (std::size_t t = kTimes; t-- > 0;)
    for (std::size_t l = kLayers; l-- > 0;) {
      const OpId op = add("b" + std::to_string(l) + "/" + std::to_string(t), 2'000, false, true);
      gradient[l][t] = op;
      builder.set_forward(op, result.cell[l][t]);
      builder.connect(out[l][t], op);
      if (l + 1 < kLayers) builder.connect(back[l + 1][t], op);
      if (t + 1 < kTimes) builder.connect(back[l][t + 1], op);
      back[l][t] = builder.add_output(op, state);
      by_weights[l].push_back(builder.add_output(op, weights));
    }
  const OpId norm = add("norm", 1, true, false);
  for (std::size_t l = 0; l < kLayers; ++l) {
    result.sum.push_back(add("s" + std::to_string(l), 10, false, true));
    for (const TensorId tensor : by_weights[l]) builder.connect(tensor, result.sum[l]);
    result.update.push_back(add("u" + std::to_string(l), 10, true, false));
    const TensorId sum = builder.add_output(result.sum[l], weights);
    builder.connect(builder.add_output(result.sum[l], Bytes(4)), norm);
    builder.connect(sum, result.update[l]);
    builder.connect(read[l], result.update[l]);
    for (const OpId op : {result.variable[l], result.sum[l], result.update[l]})
      builder.add_to_group(op, "variable " + std::to_string(l));
  }
  const TensorId length = builder.add_output(norm, Bytes(4));
  for (const OpId op : result.update) builder.connect(length, op);
  result.made = std::move(builder).build();
  return result;
}

Cluster three_devices() {
  return testing::equal_devices(3, Bytes(1'000'000'000), Time(1), Bandwidth(1'000'000'000),
                                CommunicationMode::kDuplex);
}

TEST_CASE(
    "pipeline items: a variable, its update and the sum of its gradients are with its reader") {
  const Recurrent of = recurrent(Bytes(1'000), Bytes(10));
  const Cluster cluster = three_devices();
  const CostModel costs(of.graph(), cluster);
  const Blocks blocks(costs, depth_first_sequence(of.graph()), 100);
  REQUIRE(blocks.size() == kLayers * kTimes);
  for (std::size_t l = 0; l < kLayers; ++l)
    for (const OpId op : {of.variable[l], of.update[l], of.sum[l]})
      CHECK(blocks.block_of(op) == blocks.block_of(of.cell[l].front()));
}

TEST_CASE("pipeline items: the time steps of a layer stand side by side if its variable is large") {
  const Cluster cluster = three_devices();
  const auto layers_of = [&](Bytes weights) {
    const Recurrent of = recurrent(weights, Bytes(10));
    const CostModel costs(of.graph(), cluster);
    std::vector<std::size_t> layers;
    for (const OpId op : variables_together(costs, depth_first_sequence(of.graph())))
      for (std::size_t l = 0; l < kLayers; ++l)
        for (const OpId cell : of.cell[l])
          if (cell == op) layers.push_back(l);
    return layers;
  };
  CHECK(layers_of(Bytes(1'000)) == std::vector<std::size_t>{0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2});
  CHECK(layers_of(Bytes(5)) != layers_of(Bytes(1'000)));
}

// A time step of a layer takes 3 us, weights 100 us on the way: stages are layers, or all is on one
// device.
TEST_CASE("pipeline: layers that recur are stages where weights are slow to send") {
  const Recurrent of = recurrent(Bytes(100'000), Bytes(10));
  const Cluster cluster = three_devices();
  constexpr std::uint32_t kMicroBatches = 8;
  const CostModel costs(of.graph(), cluster);
  const Unrolled unrolled = unroll(of.graph(), kMicroBatches);
  const CostModel unrolled_costs(unrolled.graph, cluster);
  const PlaceResult result = place_pipeline({costs, unrolled, unrolled_costs}, {.work = 100'000});
  REQUIRE(std::holds_alternative<PlacedGraph>(result));
  const Trace trace = simulate(unrolled_costs, std::get<PlacedGraph>(result));
  // Eight micro-batches of 12 cells, 3 us each, on three devices take 96 us, and fill and drain once.
  CHECK(trace.schedule.makespan < Time(110'000));
}

// Sets without a place in the forward pass, as the rule has it: over all operators, again and again.
void adopt_by_rule(const CostModel& costs, const IdVector<OpId, bool>& backward, UnionFind& sets) {
  const OpGraph& graph = costs.graph();
  const IdVector<OpId, bool> once = once_per_step(graph);
  std::vector<bool> settled(graph.num_ops(), false);
  for (const OpId op : graph.ops())
    if (!once[op] && !backward[op]) settled[sets.find(op.value())] = true;
  bool joined = false;
  const auto join = [&](OpId op, OpId other) {
    const std::uint32_t a = sets.find(op.value()), b = sets.find(other.value());
    if (settled[a] || !settled[b]) return;
    joined = true;
    sets.unite(a, b);
    settled[sets.find(a)] = true;
  };
  const auto order = graph.topological_order();
  std::vector<std::size_t> rank(graph.num_ops());
  for (std::size_t i = 0; i < order.size(); ++i) rank[order[i].value()] = i;
  for (const OpId op : order) {
    std::optional<OpId> last;
    Bytes read;
    for (const Edge& edge : graph.in_edges(op)) {
      if (once[op] || !edge.tensor.has_value() || once[edge.from]) continue;
      read += graph.size(*edge.tensor);
      if (!last.has_value() || rank[edge.from.value()] > rank[last->value()]) last = edge.from;
    }
    if (last.has_value() && read > graph.output_bytes(op)) join(op, *last);
  }
  do {
    joined = false;
    for (std::size_t i = order.size(); i-- > 0;)
      for (const Edge& edge : graph.out_edges(order[i]))
        if (once[edge.to] == once[order[i]] || once[order[i]]) join(order[i], edge.to);
    if (joined) continue;
    for (const OpId op : order)
      for (const Edge& edge : graph.in_edges(op)) join(op, edge.from);
  } while (joined);
}

// A few forward operators, and backward ones that name none.
OpGraph mostly_backward(std::uint64_t seed) {
  Random random(seed);
  OpGraphBuilder builder("backward");
  std::vector<TensorId> outputs;
  const std::size_t count = 6 + random.below(30);
  for (std::size_t i = 0; i < count; ++i) {
    const OpId op =
        testing::timed(builder, {.name = "o" + std::to_string(i), .backward = i >= 3}, Time(1));
    for (std::size_t k = 0; k < 1 + random.below(2) && !outputs.empty(); ++k)
      builder.connect(outputs[random.below(outputs.size())], op);
    outputs.push_back(
        builder.add_output(op, Bytes(1 + static_cast<std::int64_t>(random.below(9)))));
  }
  return std::move(builder).build();
}

TEST_CASE("pipeline: items are those of the rule, whatever the sweeps skip") {
  std::size_t adopted = 0;
  for (std::uint64_t seed = 0; seed < 600; ++seed) {
    CAPTURE(seed);
    const OpGraph graph = mostly_backward(seed);
    const Cluster cluster =
        baechi::testing::byte_per_ns(2, CommunicationMode::kDuplex, Time(0), Bytes(1'000'000));
    const CostModel costs(graph, cluster);
    const IdVector<OpId, bool> backward = backward_ops(graph);
    UnionFind expected = kept_together(costs);
    UnionFind before = kept_together(costs);
    adopt_by_rule(costs, backward, expected);
    for (const OpId op : graph.ops())
      adopted += expected.find(op.value()) != before.find(op.value());
    unite_circles(graph, backward, expected);
    UnionFind found = items(costs, backward);
    for (const OpId a : graph.ops())
      for (const OpId b : graph.ops())
        REQUIRE((found.find(a.value()) == found.find(b.value())) ==
                (expected.find(a.value()) == expected.find(b.value())));
  }
  CHECK(adopted > 1000);
}

}  // namespace
}  // namespace baechi::pipeline
