// SPDX-License-Identifier: Apache-2.0
#include "baechi/graph/recosted.h"

#include <algorithm>
#include <string>
#include <utility>

#include "baechi/base/error.h"
#include "baechi/graph/op_graph_builder.h"

namespace baechi {
namespace {

class Copy {
 public:
  Copy(const OpGraph& graph, const CostChange& change)
      : graph_(graph),
        change_(change),
        builder_(graph.name()),
        kinds_(graph.kinds().begin(), graph.kinds().end()),
        order_(graph.ops().begin(), graph.ops().end()),
        number_(graph.num_ops()),
        tensors_(graph.num_tensors(), TensorId(0)) {}

  void take(std::span<const OpId> order) { order_.assign(order.begin(), order.end()); }

  void number_kinds_by_name() {
    std::sort(kinds_.begin(), kinds_.end(),
              [&](KindId a, KindId b) { return graph_.kind_name(a) < graph_.kind_name(b); });
  }

  OpGraph build() && {
    builder_.set_memory_mode(graph_.memory_mode());
    const std::optional<std::int64_t> batch =
        change_.batch_size.has_value() ? change_.batch_size : graph_.batch_size();
    if (batch.has_value()) builder_.set_batch_size(*batch);
    builder_.reserve(order_.size(), graph_.num_edges());
    for (const OpId op : order_) add(op);
    for (const OpId op : order_) {
      if (const auto forward = graph_[op].forward;
          forward.has_value() && number_[*forward].has_value())
        builder_.set_forward(*number_[op], *number_[*forward]);
      for (const Edge& edge : graph_.out_edges(op)) {
        if (!number_[edge.to].has_value()) continue;
        if (edge.tensor.has_value())
          builder_.connect(tensors_[*edge.tensor], *number_[edge.to]);
        else
          builder_.add_control_edge(*number_[op], *number_[edge.to]);
      }
    }
    for (const auto& [op, variable] : graph_.writes())
      if (number_[op].has_value() && number_[variable].has_value())
        builder_.add_write(*number_[op], *number_[variable]);
    return std::move(builder_).build();
  }

 private:
  void add(OpId old_op) {
    const Operator& old = graph_[old_op];
    OperatorSpec spec = spec_of(old);
    if (change_.permanent && !old.variable)
      spec.permanent = change_.permanent(old_op, old.permanent);
    if (change_.temporary && !old.variable)
      spec.temporary = change_.temporary(old_op, old.temporary);
    const OpId op = builder_.add_operator(spec);
    number_[old_op] = op;
    for (const KindId kind : kinds_)
      if (const std::optional<Time> time = graph_.times(kind)[old_op]; time.has_value())
        builder_.set_time(op, graph_.kind_name(kind),
                          change_.time && !old.variable ? change_.time(old_op, *time) : *time);
    if (change_.times && !old.variable)
      for (const KindTime& given : change_.times(old_op))
        builder_.set_time(op, given.kind, given.time);
    for (const TensorId tensor : graph_.outputs(old_op)) {
      const Bytes size = graph_.size(tensor);
      tensors_[tensor] =
          builder_.add_output(op, change_.output ? change_.output(tensor, size) : size);
    }
    for (const std::string_view group : graph_.colocation_names(old_op))
      builder_.add_to_group(op, group);
  }

  const OpGraph& graph_;
  const CostChange& change_;
  OpGraphBuilder builder_;
  std::vector<KindId> kinds_;
  std::vector<OpId> order_;
  IdVector<OpId, std::optional<OpId>> number_;  // old to new; none: left out
  IdVector<TensorId, TensorId> tensors_;        // old to the builder's handles
};

// What does not depend on the mini-batch: variables, and what is made of them alone.
IdVector<OpId, bool> independent_of_batch(const OpGraph& graph) {
  IdVector<OpId, bool> independent(graph.num_ops());
  for (const OpId op : graph.topological_order()) {
    bool reads = false, all = true;
    for (const Edge& edge : graph.in_edges(op)) {
      if (!edge.tensor.has_value()) continue;
      reads = true;
      all = all && independent[edge.from];
    }
    independent[op] = reads ? all : graph[op].permanent > Bytes(0) || graph[op].variable;
  }
  return independent;
}

}  // namespace

OpGraph recosted(const OpGraph& graph, const CostChange& change) {
  return Copy(graph, change).build();
}

OpGraph reordered(const OpGraph& graph, std::span<const OpId> order) {
  const CostChange none;
  Copy copy(graph, none);
  copy.take(order);
  copy.number_kinds_by_name();
  return std::move(copy).build();
}

OpGraph subgraph(const OpGraph& graph, std::span<const OpId> ops) {
  const CostChange none;
  Copy copy(graph, none);
  copy.take(ops);
  return std::move(copy).build();
}

OpGraph with_batch_size(const OpGraph& graph, std::int64_t batch_size) {
  if (!graph.batch_size().has_value())
    throw InputError(
        "the graph does not say for which batch size its costs are (\"batch_size\"), so they "
        "cannot "
        "be scaled to another one");
  if (batch_size < 1) throw InputError("a batch size is at least 1");
  const std::int64_t now = *graph.batch_size();
  const IdVector<OpId, bool> independent = independent_of_batch(graph);
  const auto scaled = [&](OpId op, std::int64_t value, const char* quantity) {
    return independent[op] ? value : scale_up(value, batch_size, now, quantity);
  };
  return recosted(
      graph,
      {.time = [&](OpId op, Time time) { return Time(scaled(op, time.count(), "compute time")); },
       .temporary = [&](OpId op,
                        Bytes bytes) { return Bytes(scaled(op, bytes.count(), "memory")); },
       .output =
           [&](TensorId tensor, Bytes bytes) {
             return Bytes(scaled(graph.producer(tensor), bytes.count(), "memory"));
           },
       .batch_size = batch_size});
}

}  // namespace baechi
