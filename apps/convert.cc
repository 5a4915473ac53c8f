// SPDX-License-Identifier: Apache-2.0
// baechi convert: any graph or cluster that we read, as one of our files.
#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "apps/arguments.h"
#include "apps/console.h"
#include "baechi/base/error.h"
#include "baechi/io/cluster/write_cluster.h"
#include "baechi/io/graph/read_graph.h"
#include "baechi/io/graph/write_graph.h"
#include "baechi/io/json/json_writer.h"

namespace baechi::cli {
namespace {

struct ConvertArguments {
  GraphArgument input;  // or a cluster
  std::string output;
  std::string to;
};

std::string target_format(const ConvertArguments& options) {
  if (!options.to.empty()) return options.to;
  const std::string extension = std::filesystem::path(options.output).extension().string();
  if (extension == ".json" || options.output == "-") return "graph";
  throw InputError(options.output,
                   extension == ".dot"
                       ? "DOT is no longer written: `baechi export --to svg` draws a plan"
                       : "cannot tell the format from the extension: use .json or --to");
}

struct Converted {
  std::string text;
  std::size_t items;
};

Converted convert(const ConvertArguments& options, const std::string& format,
                  const RunContext& context) {
  if (format == "cluster") {
    const Cluster cluster =
        load_cluster({.cluster = options.input.path, .link = {}, .communication = {}});
    return {cluster_to_json(cluster.spec()), cluster.num_devices()};
  }
  const OpGraph graph = load_graph(options.input, context);
  return {graph_to_json(graph), graph.num_ops()};
}

void report(const ConvertArguments& options, const std::string& format,
            const Converted& converted) {
  std::string text;
  JsonWriter json(text);
  json.begin_object();
  json.field("output", options.output);
  json.field("format", format);
  json.field(format == "cluster" ? "devices" : "operators", converted.items);
  json.field("bytes", converted.text.size());
  json.end_object();
  json.finish();
  print_result(text);
}

Run declare_convert(OptionSet& set) {
  auto options = std::make_shared<ConvertArguments>();
  set.add("input", options->input.path,
          "Graph (" + graph_format_names() + "), or with --to cluster a cluster file or line")
      .required()
      .check(check_path)
      .type_name("IN");
  set.add("output", options->output, "File to write; - is standard output")
      .required()
      .check(check_path)
      .type_name("OUT");
  add_model_cost_options(set, options->input);
  set.add("--to", options->to,
          "What to write: graph or cluster (default: what OUT's extension says)")
      .one_of({"graph", "cluster"});
  return [options](const RunContext& context) {
    const std::string format = target_format(*options);
    const bool to_stdout = options->output == "-";
    if (context.json && to_stdout)
      throw InputError("convert", "--json and OUT - both want standard output");
    const Converted converted = convert(*options, format, context);
    throw_if_cancelled(context.cancel);
    write_result(options->output, converted.text);
    if (context.json) report(*options, format, converted);
    return ExitCode::kOk;
  };
}

}  // namespace

extern const Command kConvertCommand{
    .name = "convert",
    .summary = "Convert a graph or a cluster to graph.json or cluster.json",
    .examples =
        "baechi convert instance.json graph.json\n"
        "baechi convert step.pb graph.json --costs gpu=rtx3090\n"
        "baechi convert --to cluster 2x24GiB+2x8GiB@0.6 cluster.json",
    .declare = declare_convert,
};

}  // namespace baechi::cli
