// SPDX-License-Identifier: Apache-2.0
// baechi info: what a graph is like, alone and on a cluster.
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "apps/arguments.h"
#include "apps/console.h"
#include "baechi/base/short_text.h"
#include "baechi/bounds/graph_facts.h"
#include "baechi/io/json/json_values.h"
#include "baechi/io/json/json_writer.h"
#include "baechi/io/text/source_place.h"

namespace baechi::cli {
namespace {

struct InfoArguments {
  GraphArgument graph;
  ClusterArgument cluster;
};

using Rows = std::vector<std::pair<std::string, std::string>>;

std::string decimal(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.3g", value);
  return text;
}

std::string with_part(std::size_t all, std::size_t part, const char* what) {
  std::string text = count_text(all);
  if (part != 0) text += " (" + count_text(part) + " " + what + ")";
  return text;
}

Rows graph_rows(const OpGraph& graph, const GraphFacts& facts) {
  Rows rows;
  if (!graph.name().empty()) rows.emplace_back("graph", graph.name());
  rows.emplace_back("operators", with_part(facts.num_ops, facts.num_backward_ops, "backward"));
  rows.emplace_back("edges", with_part(facts.num_edges, facts.num_control_edges, "control"));
  rows.emplace_back("tensors", count_text(facts.num_tensors));
  rows.emplace_back("memory mode", memory_mode_name(graph.memory_mode()));
  if (graph.batch_size().has_value())
    rows.emplace_back("batch size", count_text(*graph.batch_size()));
  if (facts.num_groups != 0)
    rows.emplace_back("colocation groups",
                      count_text(facts.num_groups) + " with " + count_text(facts.num_grouped_ops) +
                          " operators, the largest " + count_text(facts.largest_group));
  if (facts.num_pinned_ops != 0)
    rows.emplace_back("pinned operators", count_text(facts.num_pinned_ops));
  rows.emplace_back("depth x width", count_text(facts.depth) + " x " + count_text(facts.width));
  for (const KindWork& kind : facts.kinds)
    rows.emplace_back("work on " + (kind.kind == kAnyKind ? "any kind" : kind.kind),
                      short_text(kind.work) + " in " + count_text(kind.num_ops) + " operators");
  rows.emplace_back("total work", short_text(facts.work));
  rows.emplace_back("critical path", short_text(facts.critical_path));
  rows.emplace_back("parallelism", decimal(facts.parallelism()));
  rows.emplace_back("permanent memory", short_text(facts.permanent));
  if (facts.num_variables != 0)
    rows.emplace_back("variables",
                      short_text(facts.variables) + " of it in " +
                          std::to_string(facts.num_variables) +
                          (facts.num_written == 0 ? std::string()
                                                  : ", " + std::to_string(facts.num_written) +
                                                        " of them changed by every micro-batch"));
  rows.emplace_back("output memory", short_text(facts.outputs));
  rows.emplace_back("memory at most", short_text(facts.total_memory()));
  if (facts.largest_op.has_value())
    rows.emplace_back("largest operator", short_text(facts.largest_need) + " (" +
                                              std::string(graph[*facts.largest_op].name) + ")");
  return rows;
}

Rows cluster_rows(const Cluster& cluster, const ClusterFacts& facts) {
  return {{"devices", count_text(cluster.num_devices())},
          {"total capacity", short_text(facts.total_capacity)},
          {"communication", std::string(communication_name(cluster.communication()))},
          {"rho", facts.rho.has_value() ? decimal(*facts.rho) : "unbounded"},
          {"SCT assumption", facts.sct_assumption ? "holds" : "does not hold"},
          {"fits one device", facts.fits_one_device ? "yes" : "not surely"},
          {"unplaceable operators", count_text(facts.num_unplaceable_ops)}};
}

void print_table(const Rows& rows) {
  std::string text;
  for (const auto& [name, value] : rows)
    text += printable(name) + std::string(name.size() < 24 ? 24 - name.size() : 1, ' ') +
            printable(value) + "\n";
  print_result(text);
}

void write_graph_facts(JsonWriter& json, const OpGraph& graph, const GraphFacts& facts) {
  json.field("name", graph.name());
  json.field("memory_mode", memory_mode_name(graph.memory_mode()));
  if (graph.batch_size().has_value()) json.field("batch_size", *graph.batch_size());
  json.field("operators", facts.num_ops);
  json.field("backward_operators", facts.num_backward_ops);
  json.field("pinned_operators", facts.num_pinned_ops);
  json.field("edges", facts.num_edges);
  json.field("control_edges", facts.num_control_edges);
  json.field("tensors", facts.num_tensors);
  json.field("colocation_groups", facts.num_groups);
  json.field("grouped_operators", facts.num_grouped_ops);
  json.field("largest_group", facts.largest_group);
  json.field("depth", facts.depth);
  json.field("width", facts.width);
  json.objects("work_by_kind", facts.kinds, [&](const KindWork& kind) {
    json.field("kind", kind.kind);
    json.field("operators", kind.num_ops);
    json.field("work_ns", kind.work.count());
  });
  json.field("work_ns", facts.work.count());
  json.field("critical_path_ns", facts.critical_path.count());
  json.field("parallelism", facts.parallelism());
  json.field("permanent_bytes", facts.permanent.count());
  json.field("variables", facts.num_variables);
  json.field("written_variables", facts.num_written);
  json.field("variable_bytes", facts.variables.count());
  json.field("output_bytes", facts.outputs.count());
  json.field("largest_temporary_bytes", facts.largest_temporary.count());
  json.field("total_memory_bytes", facts.total_memory().count());
  json.field("largest_need_bytes", facts.largest_need.count());
  if (facts.largest_op.has_value()) json.field("largest_operator", graph[*facts.largest_op].name);
}

void write_cluster_facts(JsonWriter& json, const Cluster& cluster, const ClusterFacts& facts) {
  json.field("devices", cluster.num_devices());
  json.field("total_capacity_bytes", facts.total_capacity.count());
  json.field("communication", communication_name(cluster.communication()));
  json.key("rho");
  if (facts.rho.has_value())
    json.value(*facts.rho);
  else
    json.null();
  json.field("sct_assumption", facts.sct_assumption);
  json.field("fits_one_device", facts.fits_one_device);
  json.field("unplaceable_operators", facts.num_unplaceable_ops);
}

struct OnCluster {
  const Cluster& cluster;
  ClusterFacts facts;
};

void print_json(const OpGraph& graph, const GraphFacts& facts, const OnCluster* on_cluster) {
  std::string text;
  JsonWriter json(text);
  json.begin_object();
  json.begin_object("graph");
  write_graph_facts(json, graph, facts);
  json.end_object();
  if (on_cluster != nullptr) {
    json.begin_object("cluster");
    write_cluster_facts(json, on_cluster->cluster, on_cluster->facts);
    json.end_object();
  }
  json.end_object();
  json.finish();
  print_result(text);
}

ExitCode run_info(const InfoArguments& options, const RunContext& context) {
  const OpGraph graph = load_graph(options.graph, context);
  const GraphFacts facts = graph_facts(graph);
  std::optional<Cluster> cluster;
  std::optional<OnCluster> on_cluster;
  if (!options.cluster.cluster.empty()) {
    cluster = load_cluster(options.cluster);
    on_cluster.emplace(OnCluster{*cluster, cluster_facts(CostModel(graph, *cluster))});
  }
  if (context.json) {
    print_json(graph, facts, on_cluster.has_value() ? &*on_cluster : nullptr);
    return ExitCode::kOk;
  }
  print_table(graph_rows(graph, facts));
  if (on_cluster.has_value()) print_table(cluster_rows(*cluster, on_cluster->facts));
  return ExitCode::kOk;
}

Run declare_info(OptionSet& set) {
  auto options = std::make_shared<InfoArguments>();
  add_graph_argument(set, options->graph);
  add_cluster_options(set, options->cluster, false);
  return [options](const RunContext& context) { return run_info(*options, context); };
}

}  // namespace

extern const Command kInfoCommand{
    .name = "info",
    .summary = "Show facts about a graph: size, work, critical path, memory, parallelism",
    .examples =
        "baechi info graph.json\n"
        "baechi info graph.json --cluster 4x8GiB --link 50us,6GB/s\n"
        "baechi info graph.txt --json",
    .declare = declare_info,
};

}  // namespace baechi::cli
