// SPDX-License-Identifier: Apache-2.0
// The levels of `partition`, for searches that move whole clusters. Beyond the paper.
#pragma once

#include <cstdint>
#include <vector>

#include "baechi/base/id.h"
#include "baechi/cost/cost_model.h"

namespace baechi {

// Operators with equal labels exchange much and little with others. From the coarsest level (about
// a dozen clusters per device) to the finest (colocation groups and forward/backward pairs alone).
// Labels are any numbers below the number of operators.
std::vector<IdVector<OpId, std::uint32_t>> traffic_levels(const CostModel& costs,
                                                          std::uint64_t seed);

}  // namespace baechi
