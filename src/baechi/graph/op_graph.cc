// SPDX-License-Identifier: Apache-2.0
#include "baechi/graph/op_graph.h"

#include "baechi/graph/op_graph_names.h"

namespace baechi {

OpGraph::OpGraph() : names_(std::make_unique<OpGraphNames>()) {}
OpGraph::OpGraph(OpGraph&&) noexcept = default;
OpGraph& OpGraph::operator=(OpGraph&&) noexcept = default;
OpGraph::~OpGraph() = default;

std::optional<OpId> OpGraph::find(std::string_view name) const {
  return names_->op_by_name.find(name, [&](OpId op) { return ops_[op].name; });
}

std::optional<KindId> OpGraph::find_kind(std::string_view name) const {
  for (const KindId kind : kinds())
    if (kinds_[kind] == name) return kind;
  return std::nullopt;
}

Bytes OpGraph::output_bytes(OpId op) const {
  Bytes sum;
  for (const TensorId tensor : outputs(op)) sum += home_size(tensor);
  return sum;
}

}  // namespace baechi
