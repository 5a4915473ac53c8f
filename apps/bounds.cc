// SPDX-License-Identifier: Apache-2.0
// baechi bounds: what no placement on this cluster can beat.
#include <memory>
#include <string>
#include <vector>

#include "apps/arguments.h"
#include "apps/command_line.h"
#include "apps/console.h"
#include "baechi/base/short_text.h"
#include "baechi/bounds/lower_bounds.h"
#include "baechi/io/json/json_writer.h"
#include "baechi/report/text/text_table.h"

namespace baechi::cli {
namespace {

struct BoundsArguments {
  GraphArgument graph;
  ClusterArgument cluster;
};

ExitCode bounds(const BoundsArguments& options, const RunContext& context) {
  const OpGraph graph = load_graph(options.graph, context);
  const Cluster cluster = load_cluster(options.cluster);
  const std::vector<NamedBound> bounds = lower_bounds(CostModel(graph, cluster), context.cancel);
  if (context.json) {
    std::string text;
    JsonWriter json(text);
    json.begin_object();
    json.key("bounds");
    json.begin_array();
    for (const NamedBound& bound : bounds) {
      json.begin_object(JsonWriter::Layout::kInline);
      json.field("name", bound.name);
      json.field("nanoseconds", bound.value.count());
      json.end_object();
    }
    json.end_array();
    json.end_object();
    json.finish();
    print_result(text);
    return ExitCode::kOk;
  }
  TextTable table({{"bound"}, {"step time", Align::kRight}, {"nanoseconds", Align::kRight}});
  for (const NamedBound& bound : bounds)
    table.add_row({bound.name, short_text(bound.value), count_text(bound.value.count())});
  print_text(table.text());
  return ExitCode::kOk;
}

Run declare_bounds(OptionSet& set) {
  auto options = std::make_shared<BoundsArguments>();
  add_graph_argument(set, options->graph);
  add_cluster_options(set, options->cluster, /*required=*/true);
  return [options](const RunContext& context) { return bounds(*options, context); };
}

}  // namespace

extern const Command kBoundsCommand{
    .name = "bounds",
    .summary = "Lower bounds on the step time of any placement",
    .examples =
        "baechi bounds model.json --cluster 4x8GiB\n"
        "baechi bounds model.json --cluster cluster.json --json",
    .declare = declare_bounds,
};

}  // namespace baechi::cli
