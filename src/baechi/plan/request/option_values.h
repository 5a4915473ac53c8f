// SPDX-License-Identifier: Apache-2.0
// What a request has for an option and what it may have, in words, and whether a request may be
// made. Beyond the paper.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "baechi/plan/request/planner_options.h"
#include "baechi/plan/request/request.h"

namespace baechi {

// "a whole number from 1 to 1024", "one of none, colocate or all".
std::string expected(const PlannerOption& option);

// The value that a request has, as it would be given; empty when it is none.
std::string value_text(const PlannerOption& option, const StepRequest& request);

// "expected WHAT, found 'VALUE'", and which of the names may have been meant.
std::string unexpected(const PlannerOption& option, const std::string& value);
// Throws InputError "NAME: " with that.
[[noreturn]] void refuse_value(const PlannerOption& option, Entrance entrance,
                               const std::string& value);

bool is_right(const PlannerOption& option, const StepRequest& request);

// "a, b or c".
std::string listed(const std::vector<std::string>& names, std::string_view last = " or ");

// Throws InputError for a value out of its range.
void check_ranges(const StepRequest& request);

// Throws InputError for an option that has no effect, as `taker` or the method does not take it,
// unless it has its default; and for a method that needs a placement and has none.
void check_taken(const StepRequest& request, Taker taker, Entrance entrance);

}  // namespace baechi
