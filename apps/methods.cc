// SPDX-License-Identifier: Apache-2.0
// baechi methods: every way to place, and what `place --paper` does in another way than the default.
#include <string>

#include "apps/arguments.h"
#include "apps/command_line.h"
#include "apps/console.h"
#include "baechi/io/json/json_writer.h"
#include "baechi/plan/request/paper.h"
#include "baechi/plan/request/planner_options.h"
#include "baechi/report/text/text_table.h"

namespace baechi::cli {
namespace {

OneOf methods(StepRequest& request) {
  return std::get<OneOf>(find_planner_option("method").field(request));
}

std::string methods_json() {
  StepRequest request;
  return json_document([&](JsonWriter& json) {
    json.objects("methods", methods(request).choices, [&](const OneOf::Choice& method) {
      json.field("name", method.name);
      json.field("summary", method.summary);
    });
    json.objects(
        "paper", paper_rules(),
        [&](const PaperRule& rule) {
          json.field("what", rule.what);
          json.field("section", rule.section);
          json.field("paper", rule.paper);
          json.field("default", rule.by_default);
        },
        JsonWriter::Layout::kLines);
  });
}

ExitCode run_methods(const RunContext& context) {
  if (context.json) {
    print_result(methods_json());
    return ExitCode::kOk;
  }
  StepRequest request;
  TextTable names({{"method"}, {"how it places"}});
  for (const OneOf::Choice& method : methods(request).choices)
    names.add_row({std::string(method.name), std::string(method.summary)});
  TextTable rules({{"place --paper"}, {"section"}, {"in the paper"}, {"by default"}});
  for (const PaperRule& rule : paper_rules())
    rules.add_row({std::string(rule.what), std::string(rule.section), std::string(rule.paper),
                   std::string(rule.by_default)});
  print_text(names.text() + "\n" + rules.text());
  return ExitCode::kOk;
}

Run declare_methods(OptionSet& /*set*/) { return run_methods; }

}  // namespace

extern const Command kMethodsCommand{
    .name = "methods",
    .summary = "List the placement methods, and how place --paper differs",
    .examples =
        "baechi methods\n"
        "baechi methods --json",
    .declare = declare_methods,
};

}  // namespace baechi::cli
