// SPDX-License-Identifier: Apache-2.0
// --method, --budget, --threads, --seed and --optimize: how plans are made, declared alike
// everywhere.
#pragma once

#include <string>
#include <vector>

#include "apps/command_line.h"
#include "baechi/plan/planner.h"

namespace baechi::cli {

struct Planning {
  std::string budget = "1s";
  PlanRequest request;
};

// `planning` must live until the command has run: options write into it while they are parsed.
void add_planning_options(OptionSet& set, Planning& planning);

double budget_seconds(const Planning& planning);

// With the budget and the flag that stops it.
PlanRequest request_of(const Planning& planning, const RunContext& context);

std::vector<std::string> method_names();
std::string method_help();

}  // namespace baechi::cli
