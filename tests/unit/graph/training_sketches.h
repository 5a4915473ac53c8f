// SPDX-License-Identifier: Apache-2.0
// Training steps without weights, small enough to work out by hand or to try all second runs of.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "baechi/base/random.h"
#include "baechi/graph/op_graph.h"
#include "baechi/graph/op_graph_builder.h"
#include "unit/graph_sketch.h"
#include "unit/graphs.h"

namespace baechi::testing {

// x is the input, of 1 byte; gradients have 1 byte.
//
//   x(0) --1--> f0(2) --10--> f1(3) --10--> f2(4) --5--> b2(5) -> b1(6) -> b0(7)
//
// bi also reads what fi reads.
inline OpGraph three_layers() {
  return GraphSketch()
      .ops({{"x", 0}, {"f0", 2}, {"f1", 3}, {"f2", 4}, {"b2", 5}, {"b1", 6}, {"b0", 7}})
      .backwards({"b2", "b1", "b0"})
      .tensors({{"x", 1, {"f0", "b0"}},
                {"f0", 10, {"f1", "b1"}},
                {"f1", 10, {"f2", "b2"}},
                {"f2", 5, {"b2"}},
                {"b2", 1, {"b1"}},
                {"b1", 1, {"b0"}}})
      .build();
}

// `layers` operators after an input, each reading one or two of those before it (a chain: the one
// before), and their backward in the opposite order; times and bytes are drawn.
inline OpGraph random_training(std::uint64_t seed, std::size_t layers, bool chain,
                               bool some_idle = false) {
  Random random(seed);
  OpGraphBuilder builder("training");
  const auto drawn = [&](std::uint64_t most) {
    return static_cast<std::int64_t>(1 + random.below(most));
  };
  const auto time = [&] { return Time(some_idle && random.below(3) == 0 ? 0 : drawn(20)); };
  std::vector<OpId> forward{builder.add_operator({.name = "x"})};
  builder.set_time(forward[0], "gpu", Time(0));
  std::vector<TensorId> made{builder.add_output(forward[0], Bytes(1))};
  std::vector<std::vector<std::size_t>> reads(layers + 1);
  for (std::size_t i = 1; i <= layers; ++i) {
    const OpId op = timed(builder, {.name = "f" + std::to_string(i)}, time());
    reads[i].push_back(i - 1);
    if (!chain && i > 1 && random.below(2) == 0) reads[i].push_back(random.below(i - 1));
    for (const std::size_t from : reads[i]) builder.connect(made[from], op);
    forward.push_back(op);
    made.push_back(builder.add_output(op, Bytes(drawn(30))));
  }
  std::vector<std::vector<TensorId>> gradients(layers + 1);
  for (std::size_t i = layers; i >= 1; --i) {
    const OpId op =
        timed(builder, {.name = "b" + std::to_string(i), .forward = forward[i]}, time());
    if (i == layers) builder.connect(made[i], op);
    for (const TensorId gradient : gradients[i]) builder.connect(gradient, op);
    for (const std::size_t from : reads[i]) {
      builder.connect(made[from], op);
      // On chains gradients weigh nothing, so that memory is what the forward pass made.
      if (from > 0) gradients[from].push_back(builder.add_output(op, Bytes(chain ? 0 : drawn(5))));
    }
  }
  return std::move(builder).build();
}

}  // namespace baechi::testing
