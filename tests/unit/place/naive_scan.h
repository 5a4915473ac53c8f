// SPDX-License-Identifier: Apache-2.0
// The list schedulers without their queue: every decision looks at every pair again.
#pragma once

#include <optional>
#include <vector>

#include "baechi/cost/cost_model.h"
#include "baechi/place/placer.h"

namespace baechi::testing {

// What m-ETF, or m-SCT with `favorite_child`, has to decide.
PlaceResult naive_list_schedule(
    const CostModel& costs, const PlaceOptions& options,
    const IdVector<OpId, std::optional<OpId>>* favorite_child = nullptr);

}  // namespace baechi::testing
