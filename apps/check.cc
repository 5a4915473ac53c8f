// SPDX-License-Identifier: Apache-2.0
// baechi check: is this a valid graph, cluster, plan, placement or profile?
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "apps/arguments.h"
#include "apps/console.h"
#include "apps/progress.h"
#include "baechi/base/error.h"
#include "baechi/base/short_text.h"
#include "baechi/graph/recosted.h"
#include "baechi/io/cluster/read_cluster.h"
#include "baechi/io/graph/read_graph.h"
#include "baechi/io/json/json_writer.h"
#include "baechi/io/plan/placement_file.h"
#include "baechi/io/plan/plan_file.h"
#include "baechi/io/profile/profile_file.h"
#include "baechi/io/read_document.h"
#include "baechi/io/text/text_file.h"
#include "baechi/report/text/text_table.h"
#include "baechi/verify/check_plan.h"

namespace baechi::cli {
namespace {

struct CheckArguments {
  std::vector<std::string> files;
  GraphArgument graph;  // for the plans
};

struct Verdict {
  std::string file;
  std::string content;  // "graph, 12 operators, 15 edges"; empty when it is not valid
  std::string error;
};

void require_right_plan(const SourceText& source, const OpGraph& graph, const RunContext& context) {
  const auto [step, plan, original] =
      open_plan_text(source.text, source.name, recosted(graph, {}), context.cancel);
  require_right(original.has_value() ? &*original : nullptr, step, plan, source.name);
}

std::string check_file(const std::string& path, const OpGraph* graph, const ModelCosts& costs,
                       const RunContext& context) {
  const Progress progress("checking " + path);
  const SourceText source = read_text_file(path);
  switch (detect_document(source.text, source.name)) {
    case DocumentType::kCluster:
      return "cluster, " +
             counted(parse_cluster(source.text, source.name).devices.size(), "device");
    case DocumentType::kPlan:
      if (graph == nullptr)
        check_plan_text(source.text, source.name);
      else
        require_right_plan(source, *graph, context);
      return "plan";
    case DocumentType::kPlacement:
      check_placement_text(source.text, source.name);
      return "placement";
    case DocumentType::kProfile:
      return "profile, " +
             counted(parse_profile(source.text, source.name).operators.size(), "operator");
    case DocumentType::kGraph:
      break;
  }
  ModelCosts any = costs;  // whether a model is valid does not depend on what it costs
  if (any.empty()) add_model_costs("gpu=rtx3090", any);
  if (!any.batch.has_value()) any.batch = 1;
  const OpGraph found =
      parse_graph(source.text, source.name, {.costs = any, .cancel = context.cancel});
  return "graph, " + counted(found.num_ops(), "operator") + ", " +
         counted(found.num_edges(), "edge");
}

void print_json(const std::vector<Verdict>& verdicts) {
  std::string text;
  JsonWriter json(text);
  json.begin_object();
  json.objects("files", verdicts, [&](const Verdict& verdict) {
    json.field("file", verdict.file);
    json.field("valid", verdict.error.empty());
    if (verdict.error.empty())
      json.field("content", verdict.content);
    else
      json.field("error", verdict.error);
  });
  json.end_object();
  json.finish();
  print_result(text);
}

Run declare_check(OptionSet& set) {
  auto options = std::make_shared<CheckArguments>();
  set.add("files", options->files, "Graphs, clusters, plans, placements and profiles, in any order")
      .required()
      .check(check_path)
      .type_name("FILE");
  set.add("--graph", options->graph.path, "Also check the plans against this graph, as verify does")
      .check(check_path)
      .type_name("GRAPH");
  add_model_cost_options(set, options->graph);
  return [options](const RunContext& context) {
    const ModelCosts costs = model_costs(options->graph);
    std::optional<OpGraph> graph;
    if (!options->graph.path.empty()) graph = load_graph(options->graph, context);
    std::vector<Verdict> verdicts;
    ExitCode code = ExitCode::kOk;
    for (const std::string& file : options->files) {
      Verdict verdict{file, {}, {}};
      try {
        verdict.content = reading(file, [&] {
          return check_file(file, graph.has_value() ? &*graph : nullptr, costs, context);
        });
        if (!context.json) print_text(file + ": " + verdict.content + "\n");
      } catch (const InputError& error) {
        verdict.error = error.what();
        print_words("baechi: " + verdict.error);
        code = ExitCode::kBadInput;
      }
      verdicts.push_back(verdict);
    }
    if (context.json) print_json(verdicts);
    return code;
  };
}

}  // namespace

extern const Command kCheckCommand{
    .name = "check",
    .summary = "Validate graph, cluster, plan, placement and profile files",
    .examples =
        "baechi check graph.json cluster.json plan.json\n"
        "baechi check --graph graph.json plan.json",
    .declare = declare_check,
};

}  // namespace baechi::cli
