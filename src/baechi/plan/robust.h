// SPDX-License-Identifier: Apache-2.0
// Of several plans, the one that suffers least from wrong profiles (Paper 5, Figure 8, turned into
// a choice). Beyond the paper.
#pragma once

#include <cstddef>
#include <vector>

#include "baechi/cost/cost_model.h"
#include "baechi/plan/attempt/attempt.h"
#include "baechi/plan/request/request.h"

namespace baechi {

// Without an order, small errors of the costs change who runs when. Of the attempts whose step is
// as short as the shortest, up to a five-hundredth, the one that is then the best at worst.
// Requires an attempt with a placement.
std::size_t most_robust_of_fastest(const CostModel& costs, const std::vector<Attempt>& attempts,
                                   const PlanRequest& request);

}  // namespace baechi
