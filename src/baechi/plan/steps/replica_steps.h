// SPDX-License-Identifier: Apache-2.0
// Steps whose micro-batches are shared by copies of a placement on devices of their own
// (docs/reference/semantics.md, "Replicas"). Beyond the paper.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "baechi/cost/cost_model.h"
#include "baechi/graph/op_graph.h"
#include "baechi/plan/request/answer.h"
#include "baechi/plan/request/request.h"
#include "baechi/plan/steps/replica_placements.h"
#include "baechi/plan/steps/sizes.h"

namespace baechi {

// How a step of so many micro-batches is planned without replicas.
using PlanWithoutReplicas = std::function<StepPlan(OpGraph graph, std::uint32_t micro_batches,
                                                   const Cluster& cluster, const PlanRequest&)>;

// At most two ways: neighbours make a set, or neighbours are each other's replicas.
std::vector<ReplicaDevices> replica_sets(const Cluster& cluster, std::uint32_t replicas);

// The step with the best of the numbers of replicas that request.replicas has and that divide
// `micro_batches`; one replica is planned as without them, with the whole budget, so that it is
// never worse than that where 1 is one of the numbers. Bounds are of steps with as many replicas.
StepPlan plan_replicas(OpGraph graph, std::uint32_t micro_batches, const Cluster& cluster,
                       const PlanRequest& request, const PlanWithoutReplicas& plan);

}  // namespace baechi
