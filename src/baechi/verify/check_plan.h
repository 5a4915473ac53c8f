// SPDX-License-Identifier: Apache-2.0
// The verifier's verdict on a whole plan: its schedule, and what it says about itself.
#pragma once

#include <string>
#include <vector>

#include "baechi/cluster/cluster.h"
#include "baechi/graph/op_graph.h"
#include "baechi/graph/unroll.h"
#include "baechi/schedule/plan.h"
#include "baechi/verify/check_schedule.h"

namespace baechi {

// One sentence per broken rule of the schedule; when there is none, one per figure that does not
// follow from it: peaks with their moments and operators, busy times, bytes sent and received, the
// method's row, bounds. Empty when the plan is right.
std::vector<std::string> check_plan(const StepGraph& step, const Plan& plan,
                                    const CheckOptions& options = {});

// The same of a plan for a step that is not the graph as given, `original`: first, that the step has
// its micro-batches and its second runs as they should be.
std::vector<std::string> check_plan(const OpGraph& original, const StepGraph& step,
                                    const Plan& plan);
// That alone.
std::vector<std::string> check_step(const OpGraph& original, const OpGraph& step, const Plan& plan);

// The first of these and how many more there are; empty when the plan is right. `original` is absent
// where the step is the graph as given.
std::string why_wrong(const OpGraph* original, const StepGraph& step, const Plan& plan,
                      const CheckOptions& options = {});
// Throws InputError with that, at `place`.
void require_right(const OpGraph* original, const StepGraph& step, const Plan& plan,
                   const std::string& place, const CheckOptions& options = {});

}  // namespace baechi
