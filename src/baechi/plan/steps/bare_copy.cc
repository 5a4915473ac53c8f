// SPDX-License-Identifier: Apache-2.0
#include "baechi/plan/steps/bare_copy.h"

#include <string>

namespace baechi {

OpGraphBuilder bare_copy(const OpGraph& graph) {
  OpGraphBuilder builder(graph.name());
  builder.reserve(graph.num_ops(), graph.num_edges());
  for (const OpId op : graph.ops()) {
    builder.add_operator({.name = std::to_string(op.value()),
                          .backward = graph[op].backward,
                          .variable = graph[op].variable});
    builder.set_times(op, graph, op);
  }
  for (const OpId op : graph.ops())
    for (const TensorId tensor : graph.outputs(op)) {
      const TensorId handle = builder.add_output(op, graph.size(tensor));
      for (const Edge& edge : graph.consumers(tensor)) builder.connect(handle, edge.to);
    }
  for (const OpId op : graph.ops())
    for (const Edge& edge : graph.out_edges(op))
      if (!edge.tensor.has_value()) builder.add_control_edge(op, edge.to);
  return builder;
}

}  // namespace baechi
