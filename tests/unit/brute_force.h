// SPDX-License-Identifier: Apache-2.0
// The oracle of the tests: the best plan of a tiny instance, by trying all.
#pragma once

#include <optional>

#include "baechi/base/units.h"
#include "baechi/cluster/cluster.h"
#include "baechi/graph/op_graph.h"
#include "baechi/schedule/schedule.h"

namespace baechi::testing {

struct Optimum {
  Time makespan;
  PlacedGraph placed;  // a plan that reaches it, with its order
};

// The least makespan over all placements and all device orders under the rules of
// docs/reference/semantics.md: pins, colocation and the capacities at every moment included.
// Nothing when no plan is feasible. Exhaustive but pruned: microseconds to a few milliseconds up to
// 6 operators on 3 devices, up to seconds for 8; meant for <= 9. Independent of simulate/, verify/
// and place/.
std::optional<Optimum> optimal_makespan(const OpGraph& graph, const Cluster& cluster);

// Whether some placement and order keeps every rule: the same search, stopping at the first plan.
bool feasible(const OpGraph& graph, const Cluster& cluster);

}  // namespace baechi::testing
