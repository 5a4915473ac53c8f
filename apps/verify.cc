// SPDX-License-Identifier: Apache-2.0
// baechi verify: the independent check of a plan against its graph, rule by rule.
#include <memory>
#include <string>
#include <vector>

#include "apps/arguments.h"
#include "apps/command_line.h"
#include "apps/console.h"
#include "baechi/io/json/json_writer.h"
#include "baechi/verify/check_plan.h"

namespace baechi::cli {
namespace {

struct VerifyArguments {
  GraphArgument graph;
  std::string plan;
};

ExitCode verify(const VerifyArguments& options, const RunContext& context) {
  const auto [step, plan, original] = load_plan(options.plan, options.graph, context);
  const std::vector<std::string> violations =
      original.has_value() ? check_plan(*original, step, plan) : check_plan(step, plan);
  if (context.json) {
    std::string text;
    JsonWriter json(text);
    json.begin_object();
    json.field("right", violations.empty());
    json.values("violations", violations);
    json.end_object();
    json.finish();
    print_result(text);
  } else if (violations.empty()) {
    print_text(options.plan + ": every rule holds\n");
  }
  for (const std::string& violation : violations)
    print_words("baechi: " + options.plan + ": " + violation);
  return violations.empty() ? ExitCode::kOk : ExitCode::kBadInput;
}

Run declare_verify(OptionSet& set) {
  auto options = std::make_shared<VerifyArguments>();
  add_graph_argument(set, options->graph);
  set.add("plan", options->plan, "The plan file").required().check(check_path).type_name("PLAN");
  return [options](const RunContext& context) { return verify(*options, context); };
}

}  // namespace

extern const Command kVerifyCommand{
    .name = "verify",
    .summary = "Check a plan against its graph, rule by rule, with independent code",
    .examples =
        "baechi verify model.json plan.json\n"
        "baechi verify model.json plan.json --json",
    .declare = declare_verify,
};

}  // namespace baechi::cli
