// SPDX-License-Identifier: Apache-2.0
// What placers that move whole sets of operators never take apart. Beyond the paper.
#pragma once

#include "baechi/cost/cost_model.h"
#include "baechi/graph/union_find.h"

namespace baechi {

// Colocation groups, and every backward operator with its forward one unless their pins differ.
UnionFind kept_together(const CostModel& costs);

}  // namespace baechi
