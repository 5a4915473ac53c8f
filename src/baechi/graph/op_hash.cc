// SPDX-License-Identifier: Apache-2.0
#include "baechi/graph/op_hash.h"

#include <optional>

namespace baechi {

Hash hash_of(std::string_view text) {
  Hash hash = text.size();
  for (const char c : text) hash = mix(hash, static_cast<Hash>(static_cast<unsigned char>(c)));
  return hash;
}

Hash hash_of(const OpGraph& graph, OpId op) {
  const Operator& self = graph[op];
  Hash hash = mix(mix(mix(1, self.permanent), self.temporary), self.backward ? Hash{1} : Hash{0});
  if (self.variable) hash = mix(hash, Hash{2});
  if (self.random) hash = mix(hash, Hash{3});
  if (self.pin.has_value()) hash = mix(hash, hash_of(*self.pin));
  Hash times = 0;  // a sum: kinds are numbered as a file names them
  for (const KindId kind : graph.kinds())
    if (const std::optional<Time> time = graph.times(kind)[op])
      times += mix(hash_of(graph.kind_name(kind)), *time);
  hash = mix(hash, times);
  for (const TensorId tensor : graph.outputs(op)) hash = mix(hash, graph.size(tensor));
  return hash;
}

Hash port_of(const OpGraph& graph, const Edge& edge) {
  if (!edge.tensor.has_value()) return 0;
  return 1 + edge.tensor->value() - (*graph.outputs(edge.from).begin()).value();
}

}  // namespace baechi
