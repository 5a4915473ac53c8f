// SPDX-License-Identifier: Apache-2.0
// A training step of equal layers at any batch size, for tests of steps of micro-batches.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "baechi/graph/op_graph.h"
#include "baechi/graph/op_graph_builder.h"
#include "unit/graphs.h"

namespace baechi::testing {

// Four equal layers forward and backward, each with a weight of 10 bytes and an update. The work of
// a sample is 3 a layer, and every operator takes 1 besides.
//
//   f0 -> f1 -> f2 -> f3 -> b3 -> b2 -> b1 -> b0      bi -> ui
inline OpGraph training(std::int64_t batch, bool marked = true) {
  OpGraphBuilder builder("training");
  builder.set_batch_size(batch);
  std::vector<OpId> forward, backward;
  const auto add = [&](const std::string& name, std::int64_t time, OperatorSpec spec) {
    spec.name = name;
    return timed(builder, spec, Time(time));
  };
  for (int i = 0; i < 4; ++i)
    forward.push_back(
        add("f" + std::to_string(i), 1 + batch, {.name = {}, .permanent = Bytes(10)}));
  for (int i = 4; i-- > 0;)
    backward.push_back(add("b" + std::to_string(i), 1 + 2 * batch,
                           {.name = {}, .forward = forward[static_cast<std::size_t>(i)]}));
  for (std::size_t i = 0; i < 4; ++i) {
    const TensorId kept = builder.add_output(forward[i], Bytes(batch));
    builder.connect(kept, i < 3 ? forward[i + 1] : backward[0]);
    builder.connect(kept, backward[3 - i]);
    if (i < 3) builder.connect(builder.add_output(backward[i], Bytes(batch)), backward[i + 1]);
    const OpId update =
        add("u" + std::to_string(3 - i), 1, {.name = {}, .backward = true, .per_step = marked});
    builder.connect(builder.add_output(backward[i], Bytes(10)), update);
    for (const OpId op : {forward[3 - i], backward[i], update})
      builder.add_to_group(op, "layer" + std::to_string(3 - i));
  }
  return std::move(builder).build();
}

}  // namespace baechi::testing
