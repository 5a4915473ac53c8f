// SPDX-License-Identifier: Apache-2.0
// Of several plans, the one that suffers least from wrong profiles (Paper 5, Figure 8, turned into
// a choice). Beyond the paper.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "baechi/cost/cost_model.h"
#include "baechi/plan/attempt/attempt.h"
#include "baechi/plan/perturb.h"
#include "baechi/plan/request/request.h"

namespace baechi {

struct RobustChoice {
  std::size_t attempt;  // with a placement
  std::string note;     // what was chosen, why, and what the others would take at worst
};

// The attempt whose longest step over the samples is the shortest; then the shorter step, then the
// earlier one. Requires an attempt with a placement.
RobustChoice choose_robust(const CostModel& costs, const std::vector<Attempt>& attempts,
                           const Perturbations& perturbations);

// Without an order, small errors of the costs change who runs when. Of the attempts whose step is
// as short as the shortest, up to a five-hundredth, the one that is then the best at worst.
// Requires an attempt with a placement.
std::size_t most_robust_of_fastest(const CostModel& costs, const std::vector<Attempt>& attempts,
                                   const PlanRequest& request);

}  // namespace baechi
