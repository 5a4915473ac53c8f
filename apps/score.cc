// SPDX-License-Identifier: Apache-2.0
// baechi score: what a placement is worth under somebody else's objective.
#include <memory>
#include <string>

#include "apps/arguments.h"
#include "apps/command_line.h"
#include "apps/console.h"
#include "apps/objective.h"
#include "baechi/base/error.h"
#include "baechi/dnn_partitioning/dnnp_score.h"
#include "baechi/io/json/json_writer.h"
#include "baechi/io/plan/placement_file.h"
#include "baechi/io/plan/plan_file.h"
#include "baechi/io/read_document.h"
#include "baechi/io/text/quantity_text.h"
#include "baechi/io/text/text_file.h"
#include "baechi/report/text/text_table.h"

namespace baechi::cli {
namespace {

struct ScoreArguments {
  GraphArgument graph;
  std::string placement, objective;
  ClusterArgument cluster;
};

// Of a placement: the one that is given, or the one that comes in the graph's own file.
Cluster cluster_for(const ScoreArguments& options, const SourceText& placement,
                    const OpGraph& graph) {
  if (!options.cluster.cluster.empty()) return load_cluster(options.cluster);
  if (detect_document(placement.text, placement.name) == DocumentType::kPlan)
    return Cluster(parse_plan(placement.text, placement.name, graph).cluster);
  try {
    return Cluster(read_cluster_file(options.graph.path));
  } catch (const InputError&) {
    throw InputError("score", "a placement does not say on which cluster; --cluster does");
  }
}

std::string to_json(const ScoreArguments& options, const DnnpScore& score, const Cluster& cluster) {
  std::string text;
  JsonWriter json(text);
  json.begin_object();
  json.field("objective", options.objective);
  if (score.value.has_value())
    json.field("value", score.value->count());
  else
    json.field("problem", "calls of accelerators wait for each other");
  json.field("fits", score.fits);
  json.key("devices");
  json.begin_array();
  for (const DeviceId device : cluster.devices()) {
    json.begin_object(JsonWriter::Layout::kInline);
    json.field("name", cluster[device].name);
    json.field("memory", score.memory[device].count());
    if (!score.loads.empty()) json.field("load", score.loads[device].count());
    json.end_object();
  }
  json.end_array();
  if (!score.calls.empty()) {
    json.key("calls");
    json.begin_array();
    for (const DnnpCall& call : score.calls) {
      json.begin_object(JsonWriter::Layout::kInline);
      json.field("device", cluster[call.device].name);
      json.field("operators", call.operators);
      json.field("finish", call.finish.count());
      json.end_object();
    }
    json.end_array();
  }
  json.end_object();
  json.finish();
  return text;
}

std::string to_text(const ScoreArguments& options, const DnnpScore& score, const Cluster& cluster) {
  std::string text = options.objective + " ";
  text += score.value.has_value()
              ? short_text(*score.value) + " (" + std::to_string(score.value->count()) + " ns)"
              : "has no value: calls of accelerators wait for each other";
  text += "\n\n";
  if (score.calls.empty()) {
    TextTable table({{"device"}, {"load", Align::kRight}, {"memory", Align::kRight}});
    for (const DeviceId device : cluster.devices())
      table.add_row({cluster[device].name,
                     score.loads.empty() ? "" : short_text(score.loads[device]),
                     short_text(score.memory[device])});
    return text + table.text();
  }
  TextTable table({{"call on"}, {"operators", Align::kRight}, {"ends", Align::kRight}});
  for (const DnnpCall& call : score.calls)
    table.add_row(
        {cluster[call.device].name, std::to_string(call.operators), short_text(call.finish)});
  return text + table.text();
}

ExitCode score(const ScoreArguments& options, const RunContext& context) {
  const OpGraph graph = load_graph(options.graph, context);
  const SourceText source = read_text_file(options.placement);
  const Cluster cluster = cluster_for(options, source, graph);
  const Placement placement = parse_placement(source.text, source.name, graph, cluster);
  const DnnpScore found = dnnp_score(CostModel(graph, cluster), placement,
                                     find_dnnp_objective(options.objective), context.cancel);
  context.json ? print_result(to_json(options, found, cluster))
               : print_text(to_text(options, found, cluster));
  if (found.fits) return ExitCode::kOk;
  print_words("baechi: " + options.placement +
              ": an accelerator has less memory than what is placed on it");
  return ExitCode::kDoesNotFit;
}

Run declare_score(OptionSet& set) {
  auto options = std::make_shared<ScoreArguments>();
  add_graph_argument(set, options->graph);
  set.add("placement", options->placement, "A plan or a placement file")
      .required()
      .check(check_path)
      .type_name("PLAN");
  add_objective_option(set, options->objective, "What to score for:").required();
  add_cluster_options(set, options->cluster, /*required=*/false);
  return [options](const RunContext& context) { return score(*options, context); };
}

}  // namespace

extern const Command kScoreCommand{
    .name = "score",
    .summary = "What a placement is worth under the objectives of the dnn-partitioning research",
    .examples =
        "baechi score model.json plan.json --objective dnnp-latency\n"
        "baechi score instance.json placement.json --objective dnnp-maxload --json",
    .declare = declare_score,
};

}  // namespace baechi::cli
