// SPDX-License-Identifier: Apache-2.0
// Random instances, placements and orders to replay.
#pragma once

#include <cstdint>
#include <optional>

#include "baechi/base/random.h"
#include "baechi/cost/cost_model.h"
#include "baechi/schedule/schedule.h"
#include "unit/graphs.h"

namespace baechi::testing {

// Graphs of very different density, in which operators of no length are rare or common.
RandomDag varied_limits(Random& random);

// Clusters on which transfers of no length are not rare either, and memory sometimes runs out.
Cluster varied_cluster(std::uint64_t seed, Random& random);

// Every operator on some device that keeps its pin and suits all of its colocation group; absent
// when an operator or a group has none.
std::optional<Placement> random_placement(const CostModel& costs, Random& random);

// Per device, the operators in the order of one random topological order of the whole graph.
DeviceOrder random_order(const CostModel& costs, const Placement& placement, Random& random);

}  // namespace baechi::testing
