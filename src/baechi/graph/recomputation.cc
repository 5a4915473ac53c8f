// SPDX-License-Identifier: Apache-2.0
#include "baechi/graph/recomputation.h"

#include <algorithm>
#include <cstddef>
#include <string_view>
#include <utility>

#include "baechi/base/error.h"
#include "baechi/base/in_quotes.h"
#include "baechi/graph/name_separator.h"
#include "baechi/graph/op_graph_builder.h"
#include "baechi/graph/unroll.h"
#include "baechi/graph/variables.h"

namespace baechi {
namespace {

bool reads_a_tensor(const OpGraph& graph, OpId op) {
  const auto edges = graph.in_edges(op);
  return std::any_of(edges.begin(), edges.end(),
                     [](const Edge& edge) { return edge.tensor.has_value(); });
}

class Rewriting {
 public:
  Rewriting(const OpGraph& graph, std::span<const Recomputation> again)
      : graph_(graph), again_(again), builder_(graph.name()), second_(graph.num_ops()) {}

  OpGraph build() && {
    check();
    builder_.set_memory_mode(graph_.memory_mode());
    if (graph_.batch_size().has_value()) builder_.set_batch_size(*graph_.batch_size());
    builder_.reserve(graph_.num_ops() + again_.size(), graph_.num_edges() + 4 * again_.size());
    for (const OpId op : graph_.ops()) {
      op_separator_.avoid(graph_[op].name);
      for (const std::string_view name : graph_.colocation_names(op)) group_separator_.avoid(name);
    }
    for (const OpId op : graph_.ops()) add(op, false);
    for (const Recomputation& each : again_) add(each.op, true);
    for (const OpId op : graph_.ops()) connect(op);
    for (const auto& [op, variable] : graph_.writes()) builder_.add_write(op, variable);
    for (const Recomputation& each : again_) {
      builder_.add_control_edge(each.op, *second_[each.op]);
      if (each.after.has_value()) builder_.add_control_edge(*each.after, *second_[each.op]);
    }
    return std::move(builder_).build();
  }

 private:
  void check() {
    if (graph_.memory_mode() == MemoryMode::kRetain && !again_.empty())
      throw InputError(
          "the graph's memory mode is retain: it keeps all outputs of the forward pass, so running "
          "operators again frees nothing; with dataflow it would");
    const MayRunAgain may(graph_);
    for (std::size_t i = 0; i < again_.size(); ++i) {
      const OpId op = again_[i].op;
      if (const auto reason = may.refusal(op)) throw InputError(*reason);
      if (second_[op].has_value())
        throw InputError("operator " + in_quotes(graph_[op].name) + " is recomputed twice");
      if (i > 0 && op < again_[i - 1].op)
        throw InputError("operator " + in_quotes(graph_[op].name) +
                         " is out of order: recomputed operators are sorted as in the graph");
      if (again_[i].after.has_value() && !graph_[*again_[i].after].backward)
        throw InputError("the second run of " + in_quotes(graph_[op].name) + " waits for " +
                         in_quotes(graph_[*again_[i].after].name) +
                         ", which is not of the backward pass");
      second_[op] = OpId(graph_.num_ops() + i);
    }
    for (const Recomputation& each : again_)
      if (!of_use(each.op))
        throw InputError("operator " + in_quotes(graph_[each.op].name) +
                         " is recomputed for nobody: no operator of the backward pass and no "
                         "second run reads what it makes");
  }

  bool of_use(OpId op) const {
    const auto edges = graph_.out_edges(op);
    return std::any_of(edges.begin(), edges.end(), [&](const Edge& edge) {
      return edge.tensor.has_value() && (graph_[edge.to].backward || second_[edge.to].has_value());
    });
  }

  // Whether a reader of the tensor reads it of this run.
  bool is_read(TensorId tensor, bool second) const {
    const bool again = second_[graph_.producer(tensor)].has_value();
    const auto edges = graph_.consumers(tensor);
    if (!again || edges.empty()) return !second;
    return std::any_of(edges.begin(), edges.end(), [&](const Edge& edge) {
      return second ? graph_[edge.to].backward || second_[edge.to].has_value()
                    : !graph_[edge.to].backward;
    });
  }

  void add(OpId op, bool second) {
    const Operator& old = graph_[op];
    name_.assign(old.name);
    if (second) name_.append(op_separator_.text()).append("again");
    Bytes temporary = old.temporary;
    for (const TensorId tensor : graph_.outputs(op))
      if (!is_read(tensor, second)) temporary += graph_.size(tensor);
    OperatorSpec spec = spec_of(old);
    spec.name = name_;
    spec.temporary = temporary;
    spec.forward = old.forward;
    if (second) {
      spec.permanent = Bytes(0);
      spec.backward = true;
      spec.forward = op;
      spec.random = false;  // it draws what was saved
    }
    const OpId added = builder_.add_operator(spec);
    builder_.set_times(added, graph_, op);
    for (const TensorId tensor : graph_.outputs(op))
      builder_.add_output(added, is_read(tensor, second) ? graph_.size(tensor) : Bytes(0));
    for (const std::string_view group : graph_.colocation_names(op))
      builder_.add_to_group(added, group);
    if (!second_[op].has_value() || !graph_.colocation_names(op).empty()) return;
    name_.assign(old.name).append(group_separator_.text()).append("again");
    builder_.add_to_group(added, name_);
  }

  void connect(OpId op) {
    for (const Edge& edge : graph_.out_edges(op)) {
      if (!edge.tensor.has_value()) {
        builder_.add_control_edge(op, edge.to);
        continue;
      }
      const std::size_t port = edge.tensor->index() - (*graph_.outputs(op).begin()).index();
      const OpId last = second_[op].value_or(op);
      const bool backward = graph_[edge.to].backward;
      builder_.connect(*builder_.output(backward ? last : op, port), edge.to);
      if (second_[edge.to].has_value())
        builder_.connect(*builder_.output(last, port), *second_[edge.to]);
    }
  }

  const OpGraph& graph_;
  std::span<const Recomputation> again_;
  OpGraphBuilder builder_;
  IdVector<OpId, std::optional<OpId>> second_;
  NameSeparator op_separator_, group_separator_;
  std::string name_;
};

}  // namespace

MayRunAgain::MayRunAgain(const OpGraph& graph)
    : graph_(graph),
      once_per_step_(once_per_step(graph)),
      touches_written_(touches_written(graph)) {}

std::optional<std::string> MayRunAgain::refusal(OpId op) const {
  const std::string name = "operator " + in_quotes(graph_[op].name);
  if (graph_[op].backward)
    return name + " is of the backward pass: only operators of the forward pass run again";
  if (once_per_step_[op]) return name + " runs once per step, however many micro-batches there are";
  if (!graph_[op].recompute)
    return name + " is marked \"recompute\": false: a second run would not give the same outputs";
  if (touches_written_[op])
    return name +
           " reads or writes a variable that micro-batches change: a second run would find another "
           "value";
  if (!reads_a_tensor(graph_, op))
    return name + " reads no tensor: what it outputs comes from outside of the graph";
  return std::nullopt;
}

OpGraph recomputing(const OpGraph& graph, std::span<const Recomputation> again) {
  return Rewriting(graph, again).build();
}

}  // namespace baechi
