// SPDX-License-Identifier: Apache-2.0
// The planner's options on the command line, from the rows of plan/planner_options.h.
#pragma once

#include "apps/command_line.h"
#include "baechi/plan/planner_options.h"

namespace baechi::cli {

// Those that `taker` takes, but for a placement's file. Defaults are what `request` has; it must
// live until the command has run: options write into it while they are parsed.
void add_planning_options(OptionSet& set, PlanRequest& request, Taker taker);

// With the flag that stops it.
PlanRequest request_of(PlanRequest request, const RunContext& context);

}  // namespace baechi::cli
