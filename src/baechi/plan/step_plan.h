// SPDX-License-Identifier: Apache-2.0
// A plan for a step of micro-batches: which number of them, and who of the methods does best with
// it. Beyond the paper.
#pragma once

#include <optional>
#include <vector>

#include "baechi/cost/cost_model.h"
#include "baechi/graph/op_graph.h"
#include "baechi/graph/unroll.h"
#include "baechi/plan/planner.h"

namespace baechi {

struct StepPlan {
  std::optional<OpGraph> micro_batch;  // the graph of one; absent: step.graph, of the only one
  Unrolled step;  // whose graph the plan, or the reason why there is none, is about
  PlanResult result;

  const OpGraph& graph_of_one() const {
    return micro_batch.has_value() ? *micro_batch : step.graph;
  }
};

// `sizes` is the graph of a micro-batch, or, where the request has a mini-batch, the graph at one or
// more batch sizes. A micro-batch is then the mini-batch divided by their number; its costs lie
// between those of the sizes (graph/interpolated.h), or grow in proportion where there is one size
// only, which a note says. Of several numbers the one with the shortest step is taken, and notes
// tell what the others would have taken.
//
// Throws InputError as make_plan() does, for a number that does not divide the mini-batch, for
// several numbers without a mini-batch, for `auto` with one size, and for micro-batches that are
// outside of the sizes.
StepPlan make_step_plan(std::vector<OpGraph> sizes, const Cluster& cluster,
                        const PlanRequest& request, PlanTimes* times = nullptr);

}  // namespace baechi
