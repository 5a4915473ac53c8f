// SPDX-License-Identifier: Apache-2.0
// The method `partition` for searches: what it takes, and its levels, for moves of whole clusters.
// Beyond the paper.
#pragma once

#include <cstdint>
#include <vector>

#include "baechi/base/id.h"
#include "baechi/cost/cost_model.h"
#include "baechi/place/placer.h"

namespace baechi {

struct Partitioned {
  PlaceResult result;
  std::int64_t work = 0;  // as operators that the simulator replays in that time, about
};
// place_partition(), and what it took.
Partitioned partition(const CostModel& costs, const PlaceOptions& options);

// Operators with equal labels exchange much and little with others. From the coarsest level (about
// a dozen clusters per device) to the finest (colocation groups and forward/backward pairs alone).
// Labels are any numbers below the number of operators.
std::vector<IdVector<OpId, std::uint32_t>> traffic_levels(const CostModel& costs,
                                                          std::uint64_t seed);

}  // namespace baechi
