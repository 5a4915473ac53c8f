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

// The same of a plan that runs operators of `original` a second time; first, that `step` has them as
// they should be.
std::vector<std::string> check_plan(const OpGraph& original, const StepGraph& step,
                                    const Plan& plan);
// That alone.
std::vector<std::string> check_second_runs(const OpGraph& original, const OpGraph& step,
                                           const Plan& plan);

// Throws InputError, at `place`, with the first of these.
void require_right(const StepGraph& step, const Plan& plan, const std::string& place,
                   const CheckOptions& options = {});

}  // namespace baechi
