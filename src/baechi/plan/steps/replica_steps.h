// SPDX-License-Identifier: Apache-2.0
// Steps whose micro-batches are shared by copies of a placement on devices of their own
// (docs/reference/semantics.md, "Replicas"). Beyond the paper.
#pragma once

#include <cstdint>

#include "baechi/cost/cost_model.h"
#include "baechi/graph/op_graph.h"
#include "baechi/plan/request/request.h"
#include "baechi/plan/steps/replica_race.h"
#include "baechi/plan/steps/sizes.h"

namespace baechi {

// The step with the best of the numbers of replicas that request.replicas has and that divide
// `micro_batches`. Bounds are of steps with as many replicas.
StepPlan plan_replicas(OpGraph graph, std::uint32_t micro_batches, const Cluster& cluster,
                       const StepRequest& request, const PlanWithoutReplicas& plan);

}  // namespace baechi
