// SPDX-License-Identifier: Apache-2.0
#include "apps/planning.h"

#include <string>
#include <variant>
#include <vector>

#include "apps/console.h"
#include "baechi/options/option_text.h"
#include "baechi/plan/request/option_values.h"
#include "baechi/plan/request/request.h"
#include "baechi/plan/steps/step_request.h"

namespace baechi::cli {
namespace {

struct TypeName {
  std::string operator()(const OneOf&) const { return "NAME"; }
  std::string operator()(const Seconds&) const { return "TIME"; }
  std::string operator()(double*) const { return "X"; }
  std::string operator()(Counts*) const { return "N|auto"; }
  template <class Other>
  std::string operator()(const Other&) const {
    return "N";
  }
};

void add_option(OptionSet& set, const PlannerOption& option, StepRequest& request) {
  const OptionField field = option.field(request);
  const std::string names = command_line_names(option),
                    help = help_text(option, Entrance::kCommandLine);
  if (std::holds_alternative<const Placement**>(field)) return;
  if (bool* const* value = std::get_if<bool*>(&field)) {
    set.add_flag((**value ? "!" : "") + names, **value, help);
    return;
  }
  const auto read = [&option, &request](const std::string& text) {
    read_option(option, text, request, Entrance::kCommandLine);
  };
  set.add(names, read, help)
      .type_name(std::visit(TypeName{}, field))
      .show_default(value_text(option, request));
}

}  // namespace

void add_planning_options(OptionSet& set, StepRequest& request, Taker taker) {
  for (const PlannerOption& option : planner_options())
    if ((option.takers & taker) != 0) add_option(set, option, request);
}

Option add_sizes_option(OptionSet& set, SizesArgument& argument) {
  Option added = set.add("--sizes", argument.further,
                         "The same graph at another batch size; --mini-batch interpolates the "
                         "costs between sizes. May be given several times");
  added.repeatable().check(check_path).type_name("GRAPH");
  return added;
}

std::vector<OpGraph> load_sizes(const SizesArgument& argument, const RunContext& context) {
  std::vector<OpGraph> sizes;
  sizes.push_back(load_graph(argument.graph, context));
  for (const std::string& path : argument.further) {
    GraphArgument other = argument.graph;
    other.path = path;
    sizes.push_back(load_graph(other, context));
  }
  return sizes;
}

Option add_micro_batch_graph_option(OptionSet& set, std::string& path) {
  Option added = set.add("--micro-batch-graph", path,
                         "Also write the graph of one micro-batch to this file; a plan with "
                         "--mini-batch is a plan of that graph");
  added.check(check_path).type_name("FILE");
  return added;
}

void print_scaling(const std::vector<OpGraph>& sizes, const StepRequest& request) {
  if (const std::string words = scaling_words(sizes, request); !words.empty()) print_words(words);
}

ExitCode unless_stopped(ExitCode code, const RunContext& context, const std::string& how_far) {
  if (!context.cancel->requested()) return code;
  print_words("baechi: cancelled: " + how_far);
  return ExitCode::kCancelled;
}

StepRequest request_of(StepRequest request, const RunContext& context) {
  request.search.place.cancel = context.cancel;
  return request;
}

}  // namespace baechi::cli
