// SPDX-License-Identifier: Apache-2.0
// baechi optimize: the Graph Optimizer alone. The graph that placers get to see, what each pass
// did, and which operators each of its operators stands for (Paper 3.1.1 - 3.1.3).
#include "baechi/optimize/optimize.h"

#include <memory>
#include <string>
#include <vector>

#include "apps/arguments.h"
#include "apps/command_line.h"
#include "apps/console.h"
#include "apps/planning.h"
#include "baechi/io/graph/write_graph.h"
#include "baechi/io/json/json_writer.h"
#include "baechi/plan/request/paper.h"
#include "baechi/report/text/plan_text.h"

namespace baechi::cli {
namespace {

struct OptimizeArguments {
  GraphArgument graph;
  std::string output;
  ClusterArgument cluster;
  StepRequest request;  // its optimize
};

void write_size(JsonWriter& json, const char* field, const OptimizerPass::Size& size) {
  json.begin_object(field, JsonWriter::Layout::kInline);
  json.field("operators", size.ops);
  json.field("edges", size.edges);
  json.field("groups", size.groups);
  json.end_object();
}

std::string optimized_json(const Optimized& optimized, const OpGraph& original) {
  return json_document([&](JsonWriter& json) {
    json.objects("passes", optimized.passes, [&](const PassStatistics& pass) {
      json.field("pass", pass.pass);
      write_size(json, "before", pass.before);
      write_size(json, "after", pass.after);
      json.field("cpu_time", pass.cpu_time.count());
      if (!pass.note.empty()) json.field("note", pass.note);
    });
    json.objects("operators", optimized.graph.ops(), [&](const OpId op) {
      json.field("name", optimized.graph[op].name);
      json.values("members", optimized.expansion.members(op),
                  [&](const OpId member) { return original[member].name; });
    });
  });
}

ExitCode run_optimizer(const OptimizeArguments& options, const RunContext& context) {
  const OpGraph graph = load_graph(options.graph, context);
  const Cluster cluster = load_cluster(options.cluster);
  const CostModel costs(graph, cluster);
  const StepRequest& asked = options.request;
  const StepRequest request = asked.search.paper ? as_the_paper(asked) : asked;
  const Optimized optimized = optimize(costs, request.search.optimize);
  throw_if_cancelled(context.cancel);
  if (!options.output.empty()) write_result(options.output, graph_to_json(optimized.graph));
  if (options.output == "-") return ExitCode::kOk;
  if (context.json) {
    print_result(optimized_json(optimized, graph));
    return ExitCode::kOk;
  }
  const std::vector<OptimizerPass> passes(optimized.passes.begin(), optimized.passes.end());
  std::vector<Time> times;
  for (const PassStatistics& pass : optimized.passes) times.push_back(pass.cpu_time);
  print_text(passes_text(passes, times));
  return ExitCode::kOk;
}

Run declare_optimize(OptionSet& set) {
  auto options = std::make_shared<OptimizeArguments>();
  add_graph_argument(set, options->graph);
  add_cluster_options(set, options->cluster, /*required=*/true);
  add_planning_options(set, options->request, kOptimizerTakes);
  add_output_option(set, options->output);
  return [options](const RunContext& context) { return run_optimizer(*options, context); };
}

}  // namespace

extern const Command kOptimizeCommand{
    .name = "optimize",
    .summary = "Show how the Graph Optimizer changes a graph before placement",
    .examples =
        "baechi optimize model.json --cluster 4x8GiB\n"
        "baechi optimize model.json --cluster paper --optimize fuse -o small.json\n"
        "baechi optimize model.json --cluster 4x8GiB --json",
    .declare = declare_optimize,
};

}  // namespace baechi::cli
