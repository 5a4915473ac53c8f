// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "baechi/graph/op_graph_builder.h"
#include "baechi/place/pipeline/blocks.h"
#include "baechi/place/pipeline/items.h"
#include "baechi/place/pipeline/pipeline.h"
#include "baechi/place/topological_sequences.h"
#include "baechi/simulate/execution_simulator.h"

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
    const OpId op = builder.add_operator(
        {.name = name, .backward = backward && !per_step, .per_step = per_step});
    builder.set_time(op, "gpu", Time(time));
    return op;
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
  return Cluster(uniform_cluster({.count = 3,
                                  .capacity = Bytes(1'000'000'000),
                                  .latency = Time(1),
                                  .bandwidth = Bandwidth(1'000'000'000),
                                  .communication = CommunicationMode::kDuplex}));
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

}  // namespace
}  // namespace baechi::pipeline
