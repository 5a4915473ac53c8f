// SPDX-License-Identifier: Apache-2.0
#include "baechi/graph/unroll.h"

#include <algorithm>
#include <limits>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "baechi/base/error.h"
#include "baechi/graph/name_separator.h"
#include "baechi/graph/op_graph_builder.h"
#include "baechi/graph/recosted.h"

namespace baechi {
namespace {

bool takes_no_time(const OpGraph& graph, OpId op) {
  return std::all_of(graph.kinds().begin(), graph.kinds().end(), [&](KindId kind) {
    return graph.times(kind)[op].value_or(Time(0)) == Time(0);
  });
}

// Variables and their reads. What takes time may have an input that is no operator.
void find_variables(const OpGraph& graph, const IdVector<OpId, bool>& writes,
                    IdVector<OpId, bool>& once) {
  for (const OpId op : graph.topological_order()) {
    if (!takes_no_time(graph, op) || writes[op]) continue;
    const auto edges = graph.in_edges(op);
    once[op] = edges.empty() ? graph[op].permanent > Bytes(0) || graph[op].variable
                             : std::all_of(edges.begin(), edges.end(),
                                           [&](const Edge& edge) { return once[edge.from]; });
  }
}

// Updates, and what only waits for them, as TensorFlow's train_op does.
void find_updates(const OpGraph& graph, const IdVector<OpId, bool>& writes,
                  IdVector<OpId, bool>& once) {
  const bool gradients_named = std::any_of(graph.ops().begin(), graph.ops().end(),
                                           [&](OpId op) { return graph[op].forward.has_value(); });
  IdVector<OpId, bool> update(graph.num_ops());
  const auto order = graph.topological_order();
  for (std::size_t i = order.size(); i-- > 0;) {
    const OpId op = order[i];
    const auto edges = graph.out_edges(op), inputs = graph.in_edges(op);
    const bool reads = std::any_of(inputs.begin(), inputs.end(),
                                   [](const Edge& edge) { return edge.tensor.has_value(); });
    const bool changes = gradients_named && graph[op].backward && !graph[op].forward.has_value();
    const bool waits = graph.outputs(op).empty() && graph[op].permanent == Bytes(0) &&
                       !inputs.empty() && !reads && takes_no_time(graph, op);
    update[op] =
        (changes || waits) && !writes[op] &&
        std::all_of(edges.begin(), edges.end(), [&](const Edge& e) { return update[e.to]; });
    if (update[op]) once[op] = true;
  }
}

class Unroll {
 public:
  Unroll(const OpGraph& graph, std::uint32_t micro_batches)
      : graph_(graph), count_(micro_batches), once_(once_per_step(graph)), builder_(graph.name()) {
    for (const OpId op : graph_.ops()) {
      if (once_[op]) {
        op_separator_.avoid(graph_[op].name);
        rank_.push_back(std::nullopt);
      } else {
        rank_.push_back(static_cast<std::uint32_t>(per_micro_batch_++));
      }
      for (const std::string_view name : graph_.colocation_names(op)) group_separator_.avoid(name);
    }
    for (const auto& [op, variable] : graph_.writes()) {
      touches_.emplace_back(op, variable);
      touches_.emplace_back(variable, variable);
      for (const Edge& edge : graph_.out_edges(variable))
        if (edge.tensor.has_value()) touches_.emplace_back(edge.to, variable);
    }
    std::ranges::sort(touches_);
    touches_.erase(std::unique(touches_.begin(), touches_.end()), touches_.end());
  }

  Unrolled build() && {
    check_size();
    builder_.set_memory_mode(graph_.memory_mode());
    if (graph_.batch_size().has_value())
      builder_.set_batch_size((Bytes(*graph_.batch_size()) * count_).count());
    const std::size_t ops = graph_.num_ops() + (count_ - 1) * per_micro_batch_;
    builder_.reserve(ops + per_micro_batch_ / 4, graph_.num_edges() * count_);
    for (const OpId op : graph_.ops()) add(op, 0);
    for (std::uint32_t m = 1; m < count_; ++m)
      for (const OpId op : graph_.ops())
        if (!once_[op]) add(op, m);
    for (const OpId op : graph_.ops())
      if (!once_[op] && feeds_step(op)) add_sum(op);
    for (const OpId op : graph_.ops()) {
      add_edges(op);
      for (std::uint32_t m = 0; m < copies(op); ++m) add_forward(op, m);
    }
    keep_order();
    Unrolled result{.graph = std::move(builder_).build(),
                    .micro_batches = count_,
                    .original = std::move(original_),
                    .micro_batch = std::move(micro_batch_),
                    .rank = std::move(rank_),
                    .per_micro_batch = per_micro_batch_,
                    .first_sum = ops,
                    .mark = op_separator_.text().size() + 1,
                    .writes = {graph_.writes().begin(), graph_.writes().end()}};
    return result;
  }

 private:
  std::uint32_t copies(OpId op) const { return once_[op] ? 1 : count_; }
  OpId copy(OpId op, std::uint32_t m) const {
    if (m == 0 || once_[op]) return op;
    return OpId(graph_.num_ops() + (m - 1) * per_micro_batch_ + *rank_[op]);
  }
  bool accumulates(const Edge& edge) const {
    return edge.tensor.has_value() && !once_[edge.from] && once_[edge.to];
  }
  bool feeds_step(OpId op) const {
    const auto edges = graph_.out_edges(op);
    return std::any_of(edges.begin(), edges.end(),
                       [&](const Edge& edge) { return accumulates(edge); });
  }

  void check_size() const {
    constexpr std::size_t kMost = std::numeric_limits<std::uint32_t>::max() - 1;
    if (count_ == 0) throw InputError("a step has at least 1 micro-batch, not 0");
    const std::size_t larger = std::max(graph_.num_ops(), graph_.num_edges());
    if (larger > kMost / (std::size_t{count_} + 1))
      throw InputError("a step of " + std::to_string(count_) +
                       " micro-batches has too many operators or edges");
  }

  // The tensors that operators of the micro-batch read are its own. Of one that the step reads
  // there is besides a buffer, which copy 0 makes: the output itself where nobody else reads it.
  void add(OpId op, std::uint32_t m) {
    OperatorSpec spec = spec_of(graph_[op]);
    name_.assign(spec.name);
    if (!once_[op]) name_.append(op_separator_.text()).append(std::to_string(m));
    spec.name = name_;
    spec.per_step = false;
    if (m > 0) spec.permanent = Bytes(0);
    const OpId added = builder_.add_operator(spec);
    original_.push_back(op);
    micro_batch_.push_back(once_[op] ? std::nullopt : std::optional(m));
    builder_.set_times(added, graph_, op);
    for (const TensorId tensor : graph_.outputs(op))
      builder_.add_output(added, own_size(tensor, m));
    add_to_groups(added, op);
  }

  Bytes own_size(TensorId tensor, std::uint32_t m) const {
    return m > 0 && read_by(tensor, true) && !read_by(tensor, false) ? Bytes(0)
                                                                     : graph_.size(tensor);
  }
  bool read_by(TensorId tensor, bool step) const {
    if (once_[graph_.producer(tensor)]) return !step;
    const auto edges = graph_.consumers(tensor);
    return std::any_of(edges.begin(), edges.end(),
                       [&](const Edge& edge) { return once_[edge.to] == step; });
  }

  void add_to_groups(OpId added, OpId op) {
    for (const std::string_view group : graph_.colocation_names(op))
      builder_.add_to_group(added, group);
    add_to_groups_of_written(added, op);
    if (once_[op] || !graph_.colocation_names(op).empty()) return;
    name_.assign(graph_[op].name).append(group_separator_.text()).append("copies");
    builder_.add_to_group(added, name_);
  }

  void add_to_groups_of_written(OpId added, OpId op) {
    const auto [first, last] =
        std::equal_range(touches_.begin(), touches_.end(), std::pair(op, op),
                         [](const auto& a, const auto& b) { return a.first < b.first; });
    for (auto at = first; at != last; ++at) {
      name_.assign(graph_[at->second].name).append(group_separator_.text()).append("written");
      builder_.add_to_group(added, name_);
    }
  }

  // Who reads a variable that micro-batches change comes behind who wrote it in the one before; what
  // draws random numbers draws them in the order of micro-batches.
  void keep_order() {
    const auto follows = [&](OpId op, OpId before) {
      for (std::uint32_t m = 1; m < copies(op); ++m)
        builder_.add_control_edge(copy(before, m - 1), copy(op, m));
    };
    for (const auto& [writer, variable] : graph_.writes()) {
      follows(writer, writer);
      for (const Edge& edge : graph_.out_edges(variable))
        if (edge.tensor.has_value()) follows(edge.to, writer);
    }
    for (const OpId op : graph_.ops())
      if (graph_[op].random) follows(op, op);
  }

  void add_sum(OpId op) {
    name_.assign(graph_[op].name).append(op_separator_.text()).append("sum");
    const OpId sum = builder_.add_operator(
        {.name = name_, .kind = "Sum", .backward = graph_[op].backward, .pin = graph_[op].pin});
    original_.push_back(op);
    micro_batch_.push_back(std::nullopt);
    for (const KindId kind : graph_.kinds())
      if (graph_.times(kind)[op].has_value())
        builder_.set_time(sum, graph_.kind_name(kind), Time(0));
    add_to_groups(sum, op);
    for (std::uint32_t m = 0; m < count_; ++m) builder_.add_control_edge(copy(op, m), sum);
    for (std::uint32_t m = 1; m < count_; ++m) builder_.add_control_edge(op, copy(op, m));
    std::size_t port = 0;
    for (const TensorId tensor : graph_.outputs(op)) {
      const TensorId own = *builder_.output(op, port++);
      if (!read_by(tensor, true)) continue;
      const Bytes size = graph_.size(tensor);
      builder_.connect(read_by(tensor, false) ? builder_.add_output(op, size) : own, sum);
      const TensorId total = builder_.add_output(sum, size);
      for (const Edge& edge : graph_.consumers(tensor))
        if (once_[edge.to]) builder_.connect(total, edge.to);
    }
  }

  void add_edges(OpId op) {
    for (const Edge& edge : graph_.out_edges(op)) {
      if (accumulates(edge)) continue;
      const std::uint32_t most = std::max(copies(edge.from), copies(edge.to));
      for (std::uint32_t m = 0; m < most; ++m) {
        const OpId from = copy(op, m), to = copy(edge.to, m);
        if (edge.tensor.has_value())
          builder_.connect(*builder_.output(from, port(op, *edge.tensor)), to);
        else
          builder_.add_control_edge(from, to);
      }
    }
  }
  std::size_t port(OpId op, TensorId tensor) const {
    return tensor.index() - (*graph_.outputs(op).begin()).index();
  }

  void add_forward(OpId op, std::uint32_t m) {
    if (const std::optional<OpId> forward = graph_[op].forward; forward.has_value())
      builder_.set_forward(copy(op, m), copy(*forward, m));
  }

  const OpGraph& graph_;
  std::uint32_t count_;
  IdVector<OpId, bool> once_;
  OpGraphBuilder builder_;
  NameSeparator op_separator_, group_separator_;
  std::vector<std::pair<OpId, OpId>>
      touches_;  // a variable that is written, who writes it, who reads it
  IdVector<OpId, std::optional<std::uint32_t>> rank_;
  std::size_t per_micro_batch_ = 0;
  IdVector<OpId, OpId> original_;
  IdVector<OpId, std::optional<std::uint32_t>> micro_batch_;
  std::string name_;
};

}  // namespace

IdVector<OpId, bool> once_per_step(const OpGraph& graph) {
  IdVector<OpId, bool> once(graph.num_ops());
  if (graph.marks_steps()) {
    for (const OpId op : graph.ops()) once[op] = graph[op].per_step;
  } else {
    IdVector<OpId, bool> writes(graph.num_ops());
    for (const Write& write : graph.writes()) writes[write.op] = true;
    find_variables(graph, writes, once);
    find_updates(graph, writes, once);
  }
  return once;
}

Unrolled as_step(OpGraph graph) {
  const IdVector<OpId, bool> once = once_per_step(graph);
  Unrolled step{.graph = std::move(graph), .original = {}, .micro_batch = {}, .rank = {}};
  for (const OpId op : step.graph.ops()) {
    step.original.push_back(op);
    step.micro_batch.push_back(once[op] ? std::nullopt : std::optional<std::uint32_t>(0));
    step.rank.push_back(std::nullopt);
    if (!once[op]) step.rank[op] = static_cast<std::uint32_t>(step.per_micro_batch++);
  }
  step.first_sum = step.graph.num_ops();
  step.writes.assign(step.graph.writes().begin(), step.graph.writes().end());
  return step;
}

Unrolled unroll(const OpGraph& graph, std::uint32_t micro_batches) {
  if (micro_batches == 1) return as_step(recosted(graph, {}));
  return Unroll(graph, micro_batches).build();
}

}  // namespace baechi
