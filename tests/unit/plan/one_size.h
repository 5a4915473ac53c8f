// SPDX-License-Identifier: Apache-2.0
// A step of a graph that is known at one batch size.
#pragma once

#include <utility>
#include <vector>

#include "baechi/graph/recosted.h"
#include "baechi/plan/steps/step_plan.h"

namespace baechi::testing {

inline StepPlan step_plan_of(const OpGraph& graph, const Cluster& cluster,
                             const StepRequest& request) {
  std::vector<OpGraph> sizes;
  sizes.push_back(recosted(graph, {}));
  return make_step_plan(std::move(sizes), cluster, request);
}

}  // namespace baechi::testing
