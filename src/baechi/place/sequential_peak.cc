// SPDX-License-Identifier: Apache-2.0
#include "baechi/place/sequential_peak.h"

#include <cstdint>

namespace baechi {

SequentialPeak sequential_peak(const OpGraph& graph, std::span<const OpId> order, bool keep_all) {
  const bool retain = graph.memory_mode() == MemoryMode::kRetain;
  IdVector<TensorId, std::uint32_t> uses_left(graph.num_tensors());
  for (const TensorId tensor : graph.tensors())
    uses_left[tensor] = static_cast<std::uint32_t>(graph.consumers(tensor).size());

  Bytes held;
  for (const OpId op : graph.ops()) held += graph[op].permanent;
  SequentialPeak peak{held, std::nullopt};
  for (const OpId op : order) {
    held += graph.output_bytes(op);
    if (const Bytes now = held + graph[op].temporary; !peak.op.has_value() || now > peak.bytes)
      peak = {now, op};
    if (keep_all) continue;
    for (const Edge& edge : graph.in_edges(op)) {
      if (!edge.tensor.has_value() || --uses_left[*edge.tensor] > 0) continue;
      if (!retain || graph[edge.from].backward) held -= graph.home_size(*edge.tensor);
    }
  }
  return peak;
}

}  // namespace baechi
