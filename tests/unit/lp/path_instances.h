// SPDX-License-Identifier: Apache-2.0
// Seeded instances of the matching-path problem for tests and benchmarks: graphs shaped like the
// models of the paper's evaluation, random graphs, and cost regimes from negligible to dominant
// communication.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "baechi/base/random.h"
#include "baechi/lp/matching_path_problem.h"

namespace baechi::lp::instances {

struct Instance {
  std::vector<std::int64_t> lengths;
  std::vector<PathEdge> edges;

  std::uint32_t add_node() {
    lengths.push_back(0);
    return static_cast<std::uint32_t>(lengths.size() - 1);
  }
  void join(std::uint32_t from, std::uint32_t to) { edges.push_back({from, to, 0}); }
  MatchingPathProblem problem() const { return MatchingPathProblem(lengths, edges); }
};

// How long communication is compared with computation.
enum class Regime {
  kSct,         // every cost <= every length: the SCT assumption holds
  kUet,         // lengths 1 to 1.5, costs 0.5 to 1: nearly unit times, the assumption binds
  kMixed,       // costs log-uniform around the median length, 0.1 to 10 times
  kMeasured,    // latency plus size by bandwidth, sizes log-uniform
  kDominating,  // costs 1 to 100 times the sender's length: violates the assumption everywhere
};
inline constexpr std::array kRegimes = {Regime::kSct, Regime::kUet, Regime::kMixed,
                                        Regime::kMeasured, Regime::kDominating};

inline std::string name(Regime regime) {
  static constexpr std::array kNames = {"sct", "uet", "mixed", "measured", "dominating"};
  return kNames[static_cast<std::size_t>(regime)];
}

// Draws lengths and costs in nanoseconds. Parallel edges are merged first.
inline Instance with_times(Instance graph, Regime regime, std::uint64_t seed) {
  const auto pair = [](const PathEdge& e) { return std::pair(e.from, e.to); };
  std::ranges::sort(graph.edges, {}, pair);
  const auto same = [&](const PathEdge& a, const PathEdge& b) { return pair(a) == pair(b); };
  graph.edges.erase(std::unique(graph.edges.begin(), graph.edges.end(), same), graph.edges.end());

  Random random(seed * 1000 + static_cast<std::uint64_t>(regime));
  const auto log_uniform = [&](double low, double high) {
    return low * std::exp(random.unit() * std::log(high / low));
  };
  constexpr double kMicrosecond = 1000;
  for (std::int64_t& length : graph.lengths)
    length =
        static_cast<std::int64_t>(regime == Regime::kUet ? kMicrosecond * (10 + 5 * random.unit())
                                                         : kMicrosecond * log_uniform(3, 300));
  for (PathEdge& edge : graph.edges) {
    double cost = 0;
    switch (regime) {
      case Regime::kSct:
        cost = kMicrosecond * 3 * random.unit();
        break;
      case Regime::kUet:
        cost = kMicrosecond * (5 + 5 * random.unit());
        break;
      case Regime::kMixed:
        cost = kMicrosecond * 30 * log_uniform(0.1, 10);
        break;
      case Regime::kMeasured:
        cost = kMicrosecond * (30 + log_uniform(1e2, 1e7) / 1e4);
        break;
      case Regime::kDominating:
        cost = static_cast<double>(graph.lengths[edge.from]) * log_uniform(1, 100);
        break;
    }
    edge.cost = static_cast<std::int64_t>(cost);
  }
  return graph;
}

// Forward nodes 0 .. n-1 get a mirrored backward node each, which waits for the backward nodes of
// its forward children and for its forward node's parents' outputs.
inline void add_backward(Instance& graph) {
  const auto forward = static_cast<std::uint32_t>(graph.lengths.size());
  const std::vector<PathEdge> edges = graph.edges;
  for (std::uint32_t node = 0; node < forward; ++node) graph.add_node();
  std::vector<std::uint32_t> children(forward, 0);
  for (const PathEdge& edge : edges) {
    graph.join(2 * forward - 1 - edge.to, 2 * forward - 1 - edge.from);
    ++children[edge.from];
  }
  // Only what a gradient reads: products and activations, here the nodes with several children.
  for (const PathEdge& edge : edges)
    if (children[edge.from] > 1) graph.join(edge.from, 2 * forward - 1 - edge.to);
  graph.join(forward - 1, forward);
}

// An encoder and a decoder of LSTM cells with attention, unrolled over `steps`, and its backward
// pass. 4 layers and 100 steps: 22,204 nodes.
inline Instance gnmt_like(std::uint32_t layers, std::uint32_t steps) {
  Instance graph;
  std::vector<std::vector<std::uint32_t>> hidden(2 * layers), state(2 * layers);
  const auto cell = [&](std::uint32_t layer, std::uint32_t step, std::uint32_t input) {
    const std::uint32_t concat = graph.add_node(), matmul = graph.add_node();
    graph.join(input, concat);
    if (step > 0) graph.join(hidden[layer].back(), concat);
    graph.join(concat, matmul);
    const std::uint32_t bias = graph.add_node(), split = graph.add_node();
    graph.join(matmul, bias);
    graph.join(bias, split);
    std::array<std::uint32_t, 4> gate{};
    for (std::uint32_t& g : gate) graph.join(split, g = graph.add_node());
    const std::uint32_t update = graph.add_node(), keep = graph.add_node(), sum = graph.add_node();
    graph.join(gate[0], update);
    graph.join(gate[1], update);
    graph.join(gate[2], keep);
    if (step > 0) graph.join(state[layer].back(), keep);
    graph.join(update, sum);
    graph.join(keep, sum);
    const std::uint32_t squash = graph.add_node(), output = graph.add_node();
    graph.join(sum, squash);
    graph.join(squash, output);
    graph.join(gate[3], output);
    state[layer].push_back(sum);
    hidden[layer].push_back(output);
  };
  for (std::uint32_t step = 0; step < steps; ++step) {
    std::uint32_t input = graph.add_node();
    for (std::uint32_t layer = 0; layer < layers; ++layer) {
      cell(layer, step, input);
      input = hidden[layer].back();
    }
  }
  const std::uint32_t memory = graph.add_node();
  for (const std::uint32_t output : hidden[layers - 1]) graph.join(output, memory);
  std::vector<std::uint32_t> losses;
  for (std::uint32_t step = 0; step < steps; ++step) {
    std::uint32_t input = graph.add_node();
    for (std::uint32_t layer = layers; layer < 2 * layers; ++layer) {
      cell(layer, step, input);
      input = hidden[layer].back();
      if (layer > layers) continue;
      std::array<std::uint32_t, 4> attention{};
      for (std::uint32_t& a : attention) a = graph.add_node();
      graph.join(memory, attention[0]);
      graph.join(input, attention[0]);
      for (std::size_t i = 0; i + 1 < attention.size(); ++i)
        graph.join(attention[i], attention[i + 1]);
      graph.join(memory, attention[2]);
      graph.join(input, attention[3]);
      input = attention[3];
    }
    losses.push_back(graph.add_node());
    graph.join(input, losses.back());
  }
  const std::uint32_t loss = graph.add_node();
  for (const std::uint32_t step_loss : losses) graph.join(step_loss, loss);
  add_backward(graph);
  return graph;
}

// Attention blocks with `heads` parallel heads and a two-layer perceptron, all with residual edges,
// and the backward pass.
inline Instance transformer_like(std::uint32_t blocks, std::uint32_t heads) {
  Instance graph;
  std::uint32_t stream = graph.add_node();
  const auto then = [&](std::uint32_t from) {
    const std::uint32_t node = graph.add_node();
    graph.join(from, node);
    return node;
  };
  for (std::uint32_t block = 0; block < blocks; ++block) {
    const std::uint32_t norm = then(stream), concat = graph.add_node();
    for (std::uint32_t head = 0; head < heads; ++head) {
      const std::uint32_t query = then(norm), key = then(norm), value = then(norm);
      const std::uint32_t score = then(query);
      graph.join(key, score);
      const std::uint32_t mixed = then(then(then(score)));
      graph.join(value, mixed);
      graph.join(mixed, concat);
    }
    const std::uint32_t first_sum = then(then(concat));
    graph.join(stream, first_sum);
    const std::uint32_t second_sum = then(then(then(then(first_sum))));
    graph.join(first_sum, second_sum);
    stream = second_sum;
  }
  // The concatenations were numbered before their heads; MatchingPathProblem renumbers, but the
  // mirror needs no order: it only reverses edges.
  const auto loss = then(stream);
  static_cast<void>(loss);
  add_backward(graph);
  return graph;
}

// `width` nodes per layer; each node has one to three parents in the layer before and, sometimes,
// one further back.
inline Instance layered_random(std::uint32_t layers, std::uint32_t width, std::uint64_t seed) {
  Instance graph;
  Random random(seed);
  for (std::uint32_t layer = 0; layer < layers; ++layer) {
    for (std::uint32_t i = 0; i < width; ++i) {
      const std::uint32_t node = graph.add_node();
      if (layer == 0) continue;
      const std::uint32_t above = (layer - 1) * width;
      for (std::uint64_t parents = 1 + random.below(3); parents > 0; --parents)
        graph.join(above + static_cast<std::uint32_t>(random.below(width)), node);
      if (random.chance(0.1))
        graph.join(static_cast<std::uint32_t>(random.below(above + width)), node);
    }
  }
  return graph;
}

// A chain in which every node also has a later child a few steps on.
inline Instance chain_with_skips(std::uint32_t nodes, std::uint64_t seed) {
  Instance graph;
  Random random(seed);
  for (std::uint32_t node = 0; node < nodes; ++node) {
    graph.add_node();
    if (node == 0) continue;
    graph.join(node - 1, node);
    graph.join(node - 1 - static_cast<std::uint32_t>(random.below(std::min(node, 8U))), node);
  }
  return graph;
}

// Any DAG: each pair of a small number of nodes is an edge with probability `density`.
inline Instance random_dag(std::uint32_t nodes, double density, std::uint64_t seed) {
  Instance graph;
  Random random(seed);
  for (std::uint32_t node = 0; node < nodes; ++node) {
    graph.add_node();
    for (std::uint32_t parent = 0; parent < node; ++parent)
      if (random.chance(density)) graph.join(parent, node);
  }
  return graph;
}

}  // namespace baechi::lp::instances
