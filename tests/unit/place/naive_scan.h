// SPDX-License-Identifier: Apache-2.0
// The list schedulers without their queue: every decision looks at every pair again.
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "baechi/cost/cost_model.h"
#include "baechi/place/placer.h"

namespace baechi::testing {

// What m-ETF, or m-SCT with `favorite_child`, has to decide.
PlaceResult naive_list_schedule(
    const CostModel& costs, const PlaceOptions& options,
    const IdVector<OpId, std::optional<OpId>>* favorite_child = nullptr);

// Requires that a list scheduler decided as the scan did. Returns how many devices its plan uses;
// nothing where both have none, for the same operator and the same bytes.
std::optional<std::size_t> check_same(const PlaceResult& fast, const PlaceResult& naive);

}  // namespace baechi::testing
