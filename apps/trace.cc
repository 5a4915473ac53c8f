// SPDX-License-Identifier: Apache-2.0
// baechi trace: a plan for the viewers of traces, Perfetto and chrome://tracing.
#include <memory>
#include <string>

#include "apps/arguments.h"
#include "apps/command_line.h"
#include "apps/console.h"
#include "baechi/report/export/trace_events.h"

namespace baechi::cli {
namespace {

struct TraceArguments {
  GraphArgument graph;
  std::string plan, output;
};

ExitCode trace(const TraceArguments& options, const RunContext& context) {
  refuse_terminal(options.output, "trace.json");
  const auto [step, plan, original] = load_plan_to_show(options.plan, options.graph, context);
  write_result(options.output, trace_events(step, plan));
  return ExitCode::kOk;
}

Run declare_trace(OptionSet& set) {
  auto options = std::make_shared<TraceArguments>();
  add_graph_argument(set, options->graph);
  set.add("plan", options->plan, "The plan file").required().check(check_path).type_name("PLAN");
  add_output_option(set, options->output);
  return [options](const RunContext& context) { return trace(*options, context); };
}

}  // namespace

extern const Command kTraceCommand{
    .name = "trace",
    .summary = "Write a plan as a trace for Perfetto or chrome://tracing",
    .examples = "baechi trace model.json plan.json -o trace.json   # open it at ui.perfetto.dev",
    .declare = declare_trace,
};

}  // namespace baechi::cli
