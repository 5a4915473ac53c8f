// SPDX-License-Identifier: Apache-2.0
// A graph to which edges of control are added, so that a list schedule keeps to an order. Beyond
// the paper.
#pragma once

#include "baechi/graph/op_graph.h"
#include "baechi/graph/op_graph_builder.h"

namespace baechi {

// Its operators, tensors and edges, without names, groups and memory.
OpGraphBuilder bare_copy(const OpGraph& graph);

}  // namespace baechi
