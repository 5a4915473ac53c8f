// SPDX-License-Identifier: Apache-2.0
// Plans that run forward operators a second time: which, decided together with the placement
// (docs/explanation/recomputation.md). Beyond the paper.
#pragma once

#include <optional>

#include "baechi/base/units.h"
#include "baechi/cost/cost_model.h"
#include "baechi/graph/op_graph.h"
#include "baechi/plan/recompute/recompute_plan.h"
#include "baechi/plan/request/answer.h"
#include "baechi/plan/request/request.h"

namespace baechi {

// A step of one micro-batch with second runs: kAuto or kAll. With kAuto it fits where make_plan() finds
// something that does. Where memory makes the step longer, plans without second runs and those with
// them share the budget, and the shortest step is taken. Bounds hold for plans with any second runs.
// Throws InputError as make_plan() does.
Recomputed plan_recomputing(const OpGraph& graph, const Cluster& cluster, Recompute recompute,
                            const PlanRequest& request, PlanTimes* times = nullptr);

// The step that kAuto finds where nothing fits without, cheaply; nothing if it finds none.
std::optional<Time> step_with_recomputation(const OpGraph& graph, const Cluster& cluster,
                                            const PlanRequest& request);

// What a search found out about plans without second runs, or with `all` of them, said of plans with
// any: proved is only what arithmetic tells of those (`cannot_fit`).
void of_any_second_runs(Unplaceable& answer, bool cannot_fit, bool all);

}  // namespace baechi
