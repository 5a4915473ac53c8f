// SPDX-License-Identifier: Apache-2.0
#include "baechi/generate/with_variables.h"

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "baechi/graph/op_graph_builder.h"

namespace baechi {
namespace {

constexpr std::int64_t kParts = 8;  // of what training holds: one weights, one gradient, six state

class WithVariables {
 public:
  explicit WithVariables(const OpGraph& graph)
      : graph_(graph), builder_(graph.name()), update_(graph.num_ops()) {}

  OpGraph build() && {
    builder_.set_memory_mode(graph_.memory_mode());
    if (graph_.batch_size().has_value()) builder_.set_batch_size(*graph_.batch_size());
    for (const OpId op : graph_.ops()) find_update(op);
    for (const OpId op : graph_.ops()) add(op);
    for (const OpId op : graph_.ops()) connect(op);
    for (const OpId op : graph_.ops())
      if (graph_[op].permanent > Bytes(0)) add_weights(op);
    return std::move(builder_).build();
  }

 private:
  bool is_step(OpId op) const {
    return graph_[op].per_step && graph_[op].backward && !graph_[op].forward.has_value();
  }

  void find_update(OpId op) {
    if (!is_step(op) || !graph_[op].group.has_value()) return;
    for (const OpId member : graph_.members(*graph_[op].group))
      if (graph_[member].permanent > Bytes(0)) update_[member] = op;
  }

  void add(OpId op) {
    OperatorSpec spec = spec_of(graph_[op]);
    spec.name = graph_[op].name;
    spec.forward = graph_[op].forward;
    spec.permanent = Bytes(0);
    builder_.add_operator(spec);
    for (const KindId kind : graph_.kinds()) {
      const auto time = graph_.times(kind)[op];
      if (time.has_value() && (graph_.kind_name(kind) != "host" || is_step(op)))
        builder_.set_time(op, graph_.kind_name(kind), *time);
    }
    for (const TensorId tensor : graph_.outputs(op)) builder_.add_output(op, graph_.size(tensor));
    for (const std::string_view group : graph_.colocation_names(op))
      builder_.add_to_group(op, group);
  }

  void connect(OpId op) {
    for (const Edge& edge : graph_.out_edges(op)) {
      if (!edge.tensor.has_value()) {
        builder_.add_control_edge(op, edge.to);
        continue;
      }
      const std::size_t port = edge.tensor->index() - (*graph_.outputs(op).begin()).index();
      builder_.connect(*builder_.output(op, port), edge.to);
    }
  }

  OpId add_variable(OpId op, const char* what, Bytes bytes) {
    const std::string name = std::string(graph_[op].name) + what;
    OperatorSpec spec;
    spec.name = name;
    spec.kind = "Variable";
    spec.variable = true;
    spec.per_step = true;
    const OpId variable = builder_.add_operator(spec);
    builder_.add_output(variable, bytes);
    for (const std::string_view group : graph_.colocation_names(op))
      builder_.add_to_group(variable, group);
    return variable;
  }

  void add_weights(OpId op) {
    const Bytes all = graph_[op].permanent;
    const std::optional<OpId> update = update_[op];
    const Bytes part = update.has_value() ? Bytes(all.count() / kParts) : all;
    const OpId weight = add_variable(op, "/weight", part);
    builder_.connect(*builder_.output(weight, 0), op);
    for (const OpId other : graph_.ops())
      if (graph_[other].forward == op && graph_[other].kind == "InputGradient")
        builder_.connect(*builder_.output(weight, 0), other);
    if (!update.has_value()) return;
    const OpId state = add_variable(op, "/state", all - part * std::int64_t{2});
    builder_.connect(*builder_.output(weight, 0), *update);
    builder_.connect(*builder_.output(state, 0), *update);
    for (const Edge& edge : graph_.in_edges(*update))
      if (graph_[edge.from].kind == "WeightGradient") {
        builder_.add_output(edge.from, part);
        builder_.connect(*builder_.output(edge.from, graph_.outputs(edge.from).size()), *update);
      }
  }

  const OpGraph& graph_;
  OpGraphBuilder builder_;
  IdVector<OpId, std::optional<OpId>> update_;  // of what a module holds
};

}  // namespace

OpGraph with_variables(const OpGraph& graph) { return WithVariables(graph).build(); }

}  // namespace baechi
