// SPDX-License-Identifier: Apache-2.0
// Good topological orders of a graph for placers that work along one. Beyond the paper.
#pragma once

#include <vector>

#include "baechi/base/id.h"
#include "baechi/cost/cost_model.h"
#include "baechi/graph/op_graph.h"

namespace baechi {

using TopologicalSequence = std::vector<OpId>;

// Depth first from the sinks: an operator comes just before the first consumer that needs it, so
// branches stay together and few tensors are alive at once.
TopologicalSequence depth_first_sequence(const OpGraph& graph);

// Of the free operators always the one with the longest path still ahead (mean times over the
// devices that can run it, no communication; ties by id).
TopologicalSequence critical_path_first_sequence(const CostModel& costs);

// Of the free operators always the one that lets memory grow the least: outputs and temporary it
// takes, less the inputs it is the last to read (ties by id).
TopologicalSequence memory_frugal_sequence(const OpGraph& graph);

}  // namespace baechi
