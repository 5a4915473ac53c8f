// SPDX-License-Identifier: Apache-2.0
// What an optimisation pass returns (Paper 3.1.1 - 3.1.3): a graph to place instead of the one
// given, and the way back.
#pragma once

#include <optional>
#include <vector>

#include "baechi/base/units.h"
#include "baechi/graph/op_graph.h"
#include "baechi/optimize/expansion.h"
#include "baechi/schedule/optimizer_pass.h"
#include "baechi/schedule/schedule.h"

namespace baechi {

struct PassStatistics : OptimizerPass {
  Time cpu_time;  // of this process; the one figure here that differs from run to run
};

struct Optimized {
  OpGraph graph;
  Expansion expansion;
  std::vector<PassStatistics> passes;  // in the order they ran
  // When co-placement cut the graph: the device that each original operator's group was cut for,
  // and an order in which that fits, if devices keep to one.
  std::optional<PlacedGraph> home = {};
};

inline PassStatistics::Size size_of(const OpGraph& graph) {
  PassStatistics::Size size{graph.num_ops(), graph.num_edges(), 0};
  for (const GroupId group : graph.groups()) size.groups += graph.members(group).size() > 1;
  return size;
}

}  // namespace baechi
