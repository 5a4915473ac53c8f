// SPDX-License-Identifier: Apache-2.0
// What `baechi info` tells about a graph, alone and on a cluster.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "baechi/base/id.h"
#include "baechi/base/units.h"
#include "baechi/cost/cost_model.h"
#include "baechi/graph/op_graph.h"

namespace baechi {

struct KindWork {  // one device kind that the graph knows times for
  std::string kind;
  std::size_t num_ops = 0;  // operators with a time for exactly this kind
  Time work;                // their sum

  friend bool operator==(const KindWork&, const KindWork&) = default;
};

// Times are per operator the shortest over all kinds, unless said otherwise.
struct GraphFacts {
  std::size_t num_ops = 0;
  std::size_t num_edges = 0;  // control edges included
  std::size_t num_control_edges = 0;
  std::size_t num_tensors = 0;
  std::size_t num_groups = 0;       // colocation groups after merging
  std::size_t num_grouped_ops = 0;  // operators that are in one
  std::size_t largest_group = 0;    // operators in the largest one
  std::size_t num_backward_ops = 0;
  std::size_t num_pinned_ops = 0;
  std::size_t num_variables = 0;
  std::size_t num_written = 0;  // of these, by every micro-batch

  std::size_t depth = 0;  // operators on the longest chain
  std::size_t width = 0;  // most operators at one distance from the sources (in edges, longest way)

  Time critical_path;  // the longest chain by time, without communication
  Time work;           // one step of everything, one operator after the other
  std::vector<KindWork> kinds;

  Bytes permanent;                 // sum, variables included
  Bytes variables;                 // of that, theirs
  Bytes outputs;                   // sum of the sizes of all other tensors
  Bytes largest_temporary;         // largest over the operators
  Bytes largest_need;              // largest permanent + temporary + outputs of one operator
  std::optional<OpId> largest_op;  // whose need that is; absent in an empty graph

  // No schedule on one device needs more: everything kept, and one operator at a time.
  Bytes total_memory() const { return permanent + outputs + largest_temporary; }
  // How many devices could be busy on average if communication were free; 0 without work.
  double parallelism() const {
    return critical_path <= Time(0)
               ? 0.0
               : static_cast<double>(work.count()) / static_cast<double>(critical_path.count());
  }

  friend bool operator==(const GraphFacts&, const GraphFacts&) = default;
};

// O(operators + edges) per kind.
GraphFacts graph_facts(const OpGraph& graph);

struct ClusterFacts {  // the graph on one cluster
  // Paper 2.5: the longest transfer over the shortest operator, each on the fastest link or device
  // that serves it. Absent when an operator takes no time while some transfer takes some.
  std::optional<double> rho;
  bool sct_assumption = false;  // rho <= 1: communication is small (Paper 2.4)
  Bytes total_capacity;
  bool fits_one_device = false;         // some device may run everything and holds total_memory()
  std::size_t num_unplaceable_ops = 0;  // operators that no device of the cluster can run

  friend bool operator==(const ClusterFacts&, const ClusterFacts&) = default;
};
ClusterFacts cluster_facts(const CostModel& costs);

}  // namespace baechi
