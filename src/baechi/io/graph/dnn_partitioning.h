// SPDX-License-Identifier: Apache-2.0
// The instances of the dnn-partitioning research data: a graph for k accelerators with a memory
// limit, and CPUs without one (docs/reference/file_formats.md says how they become our graph and
// cluster).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "baechi/cluster/cluster.h"
#include "baechi/graph/op_graph.h"

namespace baechi {

// The numbers as the file has them: times in milliseconds, sizes in bytes.
struct DnnPartitioning {
  struct Node {
    std::int64_t id = 0;
    std::string name;  // "node<id>" when the file has none
    bool on_accelerator = true;
    double cpu_latency = 0, accelerator_latency = 0;
    double size = 0;
    bool backward = false;
    std::optional<std::int64_t> color_class;  // nodes of one colour share a device
  };
  struct Edge {
    std::size_t from = 0, to = 0;  // positions in `nodes`
    double cost = 0;               // to move the output of `from` between accelerator and host
  };
  double accelerator_capacity = 0;
  std::int64_t num_accelerators = 0, num_cpus = 0;
  std::vector<Node> nodes;
  std::vector<Edge> edges;
};

// Throws InputError "file:line:column: $.json.path: reason". Fields it does not know are skipped:
// the format is not ours.
DnnPartitioning parse_dnn_partitioning(std::string_view text, const std::string& place);

// A transfer cost becomes bytes at this bandwidth between accelerator and host, the one that the
// published files were made with.
inline constexpr Bandwidth kDnnPartitioningBandwidth{std::int64_t{2} << 30};

// Times round to the nearest nanosecond. Kinds "accelerator" and "cpu". Throws InputError.
OpGraph graph_of(const DnnPartitioning& instance, const std::string& place);
ClusterSpec cluster_of(const DnnPartitioning& instance, const std::string& place);

}  // namespace baechi
