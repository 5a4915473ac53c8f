// SPDX-License-Identifier: Apache-2.0
// Whether two graphs are the same, as a test says it.
#pragma once

#include <string>

#include "baechi/graph/op_graph.h"

namespace baechi::testing {

// The first difference in words; empty when there is none. Names, ids, sizes, times, edges, groups:
// everything but the numbering of the device kinds.
std::string graph_difference(const OpGraph& a, const OpGraph& b);

}  // namespace baechi::testing
