// SPDX-License-Identifier: Apache-2.0
// What a step is planned from, graphs at one or more batch sizes, and its plan. Beyond the paper.
#pragma once

#include <optional>
#include <span>
#include <variant>
#include <vector>

#include "baechi/graph/op_graph.h"
#include "baechi/graph/unroll.h"
#include "baechi/plan/request/answer.h"

namespace baechi {

// A graph, or the same one at several batch sizes: whose they are must outlive this.
class GraphSizes {
 public:
  GraphSizes(const OpGraph& graph) : graphs_(&graph, 1) {}  // NOLINT(google-explicit-constructor)
  GraphSizes(const std::vector<OpGraph>& graphs)            // NOLINT(google-explicit-constructor)
      : graphs_(graphs) {}

  const OpGraph& first() const { return graphs_.front(); }
  std::span<const OpGraph> all() const { return graphs_; }

 private:
  std::span<const OpGraph> graphs_;  // at least one
};

struct StepPlan {
  std::optional<OpGraph> micro_batch;  // the graph of one; absent: step.graph, of the only one
  Unrolled step;  // whose graph the plan, or the reason why there is none, is about
  PlanResult result;

  const OpGraph& graph_of_one() const {
    return micro_batch.has_value() ? *micro_batch : step.graph;
  }
  // The one that an operator without room is of: of several micro-batches that of one, whose ids
  // the step keeps, unless it is a second run.
  const OpGraph& graph_told_of() const {
    const auto* answer = std::get_if<Unplaceable>(&result);
    const bool known = answer != nullptr && answer->op.has_value() && step.micro_batches > 1 &&
                       answer->op->index() < graph_of_one().num_ops();
    return known ? graph_of_one() : step.graph;
  }
};

}  // namespace baechi
