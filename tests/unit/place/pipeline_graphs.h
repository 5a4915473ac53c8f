// SPDX-License-Identifier: Apache-2.0
// Graphs of one micro-batch whose steps can be worked out by hand.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "baechi/graph/op_graph_builder.h"
#include "unit/graphs.h"

namespace baechi::testing {

struct Layers {
  std::vector<std::int64_t> forward;  // ns of each layer; each gradient takes as long
  bool split = true;                  // the backward pass is two operators
  Bytes kept = Bytes(1);              // output of each layer, kept for its gradients
  Bytes weights = Bytes(0);
  bool colocated = false;              // each layer is a colocation group
  Bytes gradients = kept;              // output of each b
  Bytes results = Bytes(0);            // of each layer, that nobody reads
  std::vector<std::int64_t> update{};  // ns of each layer's, once per step
};

//  f0 -> f1 -> ... -> fn      each layer's output also goes to its gradients by inputs (b) and by
//  b0 <- b1 <- ... <- bn      weights (w), and b's output to the b and w of the layer before
inline OpGraph training(const Layers& layers) {
  OpGraphBuilder builder("layers");
  const std::size_t count = layers.forward.size();
  std::vector<OpId> forward, input, weight;
  const auto add = [&](const std::string& name, std::size_t i, std::int64_t time, bool backward) {
    const OpId op = timed(builder,
                          {.name = "layers/" + std::to_string(i) + "/" + name,
                           .permanent = backward ? Bytes(0) : layers.weights,
                           .backward = backward},
                          Time(time));
    if (backward) builder.set_forward(op, forward[i]);
    if (layers.colocated) builder.add_to_group(op, "layer " + std::to_string(i));
    return op;
  };
  for (std::size_t i = 0; i < count; ++i) forward.push_back(add("f", i, layers.forward[i], false));
  for (std::size_t i = 0; i < count; ++i) {
    input.push_back(add("b", i, layers.forward[i] * (layers.split ? 1 : 2), true));
    if (layers.split) weight.push_back(add("w", i, layers.forward[i], true));
  }
  for (std::size_t i = 0; i < count; ++i) {
    const TensorId output = builder.add_output(forward[i], layers.kept);
    builder.connect(output, input[i]);
    if (layers.split) builder.connect(output, weight[i]);
    if (i + 1 < count) builder.connect(output, forward[i + 1]);
    if (layers.results > Bytes(0)) builder.add_output(forward[i], layers.results);
    if (!layers.update.empty()) {
      const OpId update =
          timed(builder, {.name = "layers/" + std::to_string(i) + "/update", .per_step = true},
                Time(layers.update[i]));
      builder.connect(builder.add_output(layers.split ? weight[i] : input[i], Bytes(1)), update);
    }
    if (i == 0) continue;
    const TensorId gradient = builder.add_output(input[i], layers.gradients);
    builder.connect(gradient, input[i - 1]);
    if (layers.split) builder.connect(gradient, weight[i - 1]);
  }
  return std::move(builder).build();
}

}  // namespace baechi::testing
