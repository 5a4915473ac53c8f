// SPDX-License-Identifier: Apache-2.0
// The objectives of the dnn-partitioning research on the command line: the option, and what `place`
// does with it.
#pragma once

#include <string>

#include "apps/command_line.h"
#include "baechi/cost/cost_model.h"
#include "baechi/plan/request/request.h"

namespace baechi::cli {

// --objective with the words for the head of its help.
Option add_objective_option(OptionSet& set, std::string& objective, const std::string& words);

// A placement with its value, not a plan. Throws InputError for an option that it does not take.
ExitCode place_for_objective(const std::string& objective, const CostModel& costs,
                             const PlanRequest& request, const std::string& graph_path,
                             const std::string& output, const RunContext& context);

}  // namespace baechi::cli
