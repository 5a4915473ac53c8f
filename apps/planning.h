// SPDX-License-Identifier: Apache-2.0
// The planner's options on the command line, from the rows of plan/request/planner_options.h.
#pragma once

#include <string>
#include <vector>

#include "apps/arguments.h"
#include "apps/command_line.h"
#include "baechi/graph/op_graph.h"
#include "baechi/plan/request/planner_options.h"
#include "baechi/plan/request/request.h"

namespace baechi::cli {

// Those that `taker` takes, but for a placement's file. Defaults are what `request` has; it must
// live until the command has run: options write into it while they are parsed.
void add_planning_options(OptionSet& set, StepRequest& request, Taker taker);

// GRAPH with its costs, and --sizes: the same graph at other batch sizes.
struct SizesArgument {
  GraphArgument graph;
  std::vector<std::string> further;
};
Option add_sizes_option(OptionSet& set, SizesArgument& argument);
// The graph, then the further ones.
std::vector<OpGraph> load_sizes(const SizesArgument& argument, const RunContext& context);

// --micro-batch-graph, of what writes plans.
Option add_micro_batch_graph_option(OptionSet& set, std::string& path);

// Of a study, which has no plan to note it in: that costs were scaled, on stderr.
void print_scaling(const std::vector<OpGraph>& sizes, const StepRequest& request);

// Of a table or a search that is printed as far as it got: how far, on stderr, where Ctrl-C stopped
// it.
ExitCode unless_stopped(ExitCode code, const RunContext& context, const std::string& how_far);

// With the flag that stops it.
StepRequest request_of(StepRequest request, const RunContext& context);

}  // namespace baechi::cli
