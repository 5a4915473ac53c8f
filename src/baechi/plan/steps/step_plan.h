// SPDX-License-Identifier: Apache-2.0
// A plan for a step of micro-batches: which number of them, and who of the methods does best with
// it. Beyond the paper.
#pragma once

#include <vector>

#include "baechi/cost/cost_model.h"
#include "baechi/graph/op_graph.h"
#include "baechi/plan/request/answer.h"
#include "baechi/plan/request/request.h"
#include "baechi/plan/steps/sizes.h"

namespace baechi {

// `sizes` is the graph of a micro-batch, or, where the request has a mini-batch, the graph at one or
// more batch sizes. A micro-batch is then the mini-batch divided by their number; its costs lie
// between those of the sizes (graph/interpolated.h), or grow in proportion where there is one size
// only, which a note says. Of several numbers the one with the shortest step is taken, and notes
// tell what the others would have taken.
//
// Throws InputError as make_plan() does and as checked_numbers() does, and for micro-batches that are
// outside of the sizes.
StepPlan make_step_plan(std::vector<OpGraph> sizes, const Cluster& cluster,
                        const StepRequest& request, PlanTimes* times = nullptr);

// The same for those who keep their graphs: without the step, which step_of() makes again.
PlanResult plan_sizes(const GraphSizes& sizes, const Cluster& cluster, const StepRequest& request);

}  // namespace baechi
