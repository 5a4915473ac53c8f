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

// With kAuto or kAll, each choice of second runs being planned by plan_step(). With kAuto the step is never longer than without. Bounds hold for steps with any second runs. When asked to stop
// it is the best of what was planned until then.
StepPlan plan_recomputing_steps(OpGraph graph, std::uint32_t micro_batches, const Cluster& cluster,
                                Recompute recompute, const PlanRequest& request);

// The step with whole regions repeated, where nothing fits without; nothing if that is none either.
std::optional<Time> step_with_recomputation(const OpGraph& graph, std::uint32_t micro_batches,
                                            const Cluster& cluster, const PlanRequest& request);

}  // namespace baechi
