// SPDX-License-Identifier: Apache-2.0
// The methods of a step of micro-batches, one after the other, and the best of what they find.
// Beyond the paper.
#pragma once

#include "baechi/cost/cost_model.h"
#include "baechi/graph/op_graph.h"
#include "baechi/graph/unroll.h"
#include "baechi/plan/request/answer.h"
#include "baechi/plan/request/request.h"

namespace baechi {

// Such a step is searched as a whole only if nothing else fits, or is as short as micro-batches that run
// one after the other: that takes ten times as long, and stages are shorter where memory is ample.
inline bool is_large(const Unrolled& step) { return step.graph.num_ops() > 4'000; }

// A plan of `step`, which is so many micro-batches of `graph`. It runs in the order that its file
// tells. When asked to stop it is the best of what was found, with a note; throws Cancelled if that
// is nothing. A reason names the operators of `graph`. Suggestions are not its business.
PlanResult plan_step(const OpGraph& graph, const Unrolled& step, const Cluster& cluster,
                     const PlanRequest& request);

}  // namespace baechi
