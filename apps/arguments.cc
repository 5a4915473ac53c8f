// SPDX-License-Identifier: Apache-2.0
#include "apps/arguments.h"

#include <CLI/CLI.hpp>
#include <string>

#include "apps/progress.h"
#include "baechi/io/read_graph.h"

namespace baechi::cli {

void add_graph_argument(CLI::App& app, std::string& path) {
  app.add_option("graph", path,
                 "ML graph: graph.json, dnn-partitioning JSON or PipeDream graph.txt; - is "
                 "standard input")
      ->required()
      ->type_name("GRAPH");
}

OpGraph load_graph(const std::string& path, const RunContext& context) {
  const Progress progress("reading " + path);
  return read_graph(path, context.cancel);
}

void add_cluster_options(CLI::App& app, ClusterArgument& argument, bool required) {
  app.add_option("-c,--cluster", argument.cluster,
                 "cluster.json, or one line such as 4x8GiB, 2x24GiB+2x8GiB@0.6 (slower devices), "
                 "2xgpu:24GiB+1xcpu:64GiB; or known devices: paper, 4xrtx3090, 2xa100+2xt4")
      ->required(required)
      ->type_name("CLUSTER");
  app.add_option("--link", argument.link,
                 "Latency and bandwidth between any two devices, such as 50us,6GB/s")
      ->type_name("LINK");
  app.add_option("--comm", argument.communication,
                 "How transfers share devices: parallel, sequential or duplex")
      ->type_name("MODE");
}

Cluster load_cluster(const ClusterArgument& argument) { return Cluster(read_cluster(argument)); }

void add_output_option(CLI::App& app, std::string& path) {
  app.add_option("-o,--output", path, "Write the result to this file instead of standard output")
      ->type_name("FILE");
}

}  // namespace baechi::cli
