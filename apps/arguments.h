// SPDX-License-Identifier: Apache-2.0
// The options that several subcommands share, declared alike everywhere.
#pragma once

#include <string>

#include "apps/command.h"
#include "baechi/cluster/cluster.h"
#include "baechi/graph/op_graph.h"
#include "baechi/io/read_cluster.h"

namespace baechi::cli {

// GRAPH: the positional argument of everything that reads a graph.
void add_graph_argument(CLI::App& app, std::string& path);
OpGraph load_graph(const std::string& path, const RunContext& context);

// --cluster, --link, --comm.
void add_cluster_options(CLI::App& app, ClusterArgument& argument, bool required);
Cluster load_cluster(const ClusterArgument& argument);

// -o, --output: for write_result() in apps/console.h.
void add_output_option(CLI::App& app, std::string& path);

}  // namespace baechi::cli
