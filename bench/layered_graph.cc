// SPDX-License-Identifier: Apache-2.0
#include "layered_graph.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "baechi/base/random.h"
#include "baechi/graph/op_graph_builder.h"

namespace baechi::bench {

OpGraph layered_graph(const LayeredGraph& layered) {
  constexpr std::size_t kReach = 8;  // layers
  Random random(layered.seed);
  OpGraphBuilder builder("layered");
  builder.reserve(layered.num_ops, layered.num_ops * layered.inputs_per_op);
  std::vector<TensorId> outputs;
  for (std::size_t i = 0; i < layered.num_ops; ++i) {
    const std::string name = "op" + std::to_string(i);
    const OpId op = builder.add_operator({.name = name,
                                          .permanent = Bytes(random.between(0, 1 << 20)),
                                          .temporary = Bytes(random.between(0, 1 << 16))});
    builder.set_time(op, "gpu", Time(random.between(1'000, 100'000)));
    outputs.push_back(builder.add_output(op, Bytes(random.between(0, 1 << 20))));
    const std::size_t layer = i / layered.width;
    if (layer == 0) continue;
    const std::size_t first = (layer - std::min(layer, kReach)) * layered.width;
    const std::size_t count = layer * layered.width - first;
    for (std::size_t k = 0; k < layered.inputs_per_op; ++k)
      builder.connect(outputs[first + random.below(count)], op);
  }
  return std::move(builder).build();
}

}  // namespace baechi::bench
