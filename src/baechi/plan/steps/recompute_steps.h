// SPDX-License-Identifier: Apache-2.0
// Steps of several micro-batches that run forward operators a second time, the same ones in each of
// them (docs/explanation/recomputation.md). Beyond the paper.
#pragma once

#include <cstdint>
#include <optional>

#include "baechi/base/units.h"
#include "baechi/graph/op_graph.h"
#include "baechi/graph/unroll.h"
#include "baechi/plan/request/answer.h"
#include "baechi/plan/request/request.h"
#include "baechi/plan/steps/sizes.h"

namespace baechi {

// Plans a step of micro-batches of a graph, whose unrolled form is given, without second runs.
using StepPlanner = PlanResult (*)(const OpGraph& micro_batch, const Unrolled& step,
                                   const Cluster& cluster, const PlanRequest& request);

// As request.recompute asks, `plan` being asked for each choice of second runs. With kAuto the step
// is never longer than what `plan` makes without. Bounds hold for steps with any second runs.
StepPlan plan_recomputing_steps(OpGraph graph, std::uint32_t micro_batches, const Cluster& cluster,
                                const PlanRequest& request, StepPlanner plan);

// The step with whole regions repeated, where nothing fits without; nothing if that is none either.
std::optional<Time> step_with_recomputation(const OpGraph& graph, std::uint32_t micro_batches,
                                            const Cluster& cluster, const PlanRequest& request,
                                            StepPlanner plan);

}  // namespace baechi
