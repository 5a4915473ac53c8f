// SPDX-License-Identifier: Apache-2.0
// Options of the planner as users write them, on the command line and in Python, and their help.
// Beyond the paper.
#pragma once

#include <string>
#include <string_view>

#include "baechi/plan/request/planner_options.h"
#include "baechi/plan/request/request.h"

namespace baechi {

// Reads a value into the request. Throws InputError that says what was expected. Not for an option
// that is a placement.
void read_option(const PlannerOption& option, std::string_view text, StepRequest& request,
                 Entrance entrance);

// What the option is, with its range or its choices; on the command line what switching it off does.
std::string help_text(const PlannerOption& option, Entrance entrance);

}  // namespace baechi
