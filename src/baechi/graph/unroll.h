// SPDX-License-Identifier: Apache-2.0
// A step of M micro-batches as one graph (docs/reference/semantics.md, "Micro-batches"). Beyond the paper.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "baechi/base/id.h"
#include "baechi/graph/op_graph.h"

namespace baechi {

// Which operators run once per step, the others once per micro-batch: those that are marked. Where
// none is, what can be told for sure. A variable: it is marked as one, or waits for nothing, takes no
// time and holds permanent memory. What takes no time and waits for variables alone. An update: a backward operator of no forward
// operator, in a graph whose gradients name theirs, that nobody but updates waits for.
IdVector<OpId, bool> once_per_step(const OpGraph& graph);

// The graph U of a step. The operators of `graph` come first, under their ids: those that run once
// per step, and of the others the copy for micro-batch 0, which holds the permanent memory of all.
// Then come micro-batches 1, 2, ..., and last the sums.
//
// A tensor that an operator of the step reads from a micro-batch is accumulated: copy 0 makes the
// buffer and runs before the other copies. The sum, which takes no time, waits for all copies,
// reads the buffer and outputs one of the same size, which those readers read. All copies and the
// sum are in one colocation group.
//
// Who reads or writes a variable that the graph's writes() change waits for its writer's copy in the
// micro-batch before, and all of them share a device; what draws random numbers waits for its copy
// in the micro-batch before. The result itself has no writes().
//
// With one micro-batch it is the graph itself, with its names.
struct Unrolled {
  OpGraph graph;
  std::uint32_t micro_batches = 1;
  // A sum's: the operator whose copies it adds up; that of a streamed update's new values: the update;
  // what is on the store for residency: itself.
  IdVector<OpId, OpId> original;
  IdVector<OpId, std::optional<std::uint32_t>> micro_batch;  // absent: once per step, or a sum

  // The copy for this micro-batch of an operator of the original graph; the only one of an operator
  // of the step.
  OpId copy(OpId op, std::uint32_t index) const {
    if (index == 0 || !rank[op].has_value()) return op;
    return OpId(rank.size() + (index - 1) * per_micro_batch + *rank[op]);
  }
  // What the original graph calls this operator of it.
  std::string_view name(OpId op) const {
    std::string_view name = graph[op].name;
    if (micro_batches > 1 && rank[op].has_value()) name.remove_suffix(mark);
    return name;
  }
  bool is_sum(OpId op) const { return op.index() >= first_sum && op.index() < first_fetch; }
  bool is_of_residency(OpId op) const { return op.index() >= first_fetch; }

  IdVector<OpId, std::optional<std::uint32_t>> rank;  // of the original, among its like
  std::size_t per_micro_batch = 0;                    // so many operators run once per micro-batch
  std::size_t first_sum = 0;
  std::size_t first_fetch = std::numeric_limits<std::size_t>::max();  // of several micro-batches
  std::size_t mark = 0;            // so many letters longer are the names of copies 0
  std::vector<Write> writes = {};  // by operators of every micro-batch: ids of the original graph
};

// A plan's graph, and which of its operators are of which micro-batch: borrowed.
class StepGraph {
 public:
  StepGraph(const OpGraph& graph) : graph_(&graph) {}  // NOLINT(google-explicit-constructor)
  StepGraph(const Unrolled& step)                      // NOLINT(google-explicit-constructor)
      : graph_(&step.graph), step_(step.micro_batches > 1 ? &step : nullptr) {}

  const OpGraph& graph() const { return *graph_; }
  std::uint32_t micro_batches() const { return step_ == nullptr ? 1 : step_->micro_batches; }
  // Absent: it runs once per step, adds up micro-batches, or there is only one.
  std::optional<std::uint32_t> micro_batch(OpId op) const {
    return step_ == nullptr ? std::nullopt : step_->micro_batch[op];
  }
  // As Unrolled has them: how many operators the graph of one has, their copies and their names.
  std::size_t ops_of_one() const {
    return step_ == nullptr ? graph_->num_ops() : step_->rank.size();
  }
  bool is_sum(OpId op) const { return step_ != nullptr && step_->is_sum(op); }
  OpId copy(OpId op, std::uint32_t index) const {
    return step_ == nullptr ? op : step_->copy(op, index);
  }
  std::string_view name(OpId op) const {
    return step_ == nullptr ? (*graph_)[op].name : step_->name(op);
  }
  std::span<const Write> writes() const {
    return step_ == nullptr ? graph_->writes() : std::span<const Write>(step_->writes);
  }

 private:
  const OpGraph* graph_;
  const Unrolled* step_ = nullptr;
};

// The graph as a step of one micro-batch.
Unrolled as_step(OpGraph graph);

// Throws InputError when the step has more operators than a graph may have, or M is 0.
Unrolled unroll(const OpGraph& graph, std::uint32_t micro_batches);

}  // namespace baechi
