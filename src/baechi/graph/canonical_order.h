// SPDX-License-Identifier: Apache-2.0
// An order of the operators that depends on the graph alone, not on the order in which a file lists
// them. Beyond the paper.
#pragma once

#include <vector>

#include "baechi/base/id.h"
#include "baechi/graph/op_graph.h"

namespace baechi {

// Topological: by the longest path before an operator, then behind it (as its fastest device kinds
// run it), then by what it is and what surrounds it, then by name. O((ops + edges) log ops).
std::vector<OpId> canonical_order(const OpGraph& graph);

}  // namespace baechi
