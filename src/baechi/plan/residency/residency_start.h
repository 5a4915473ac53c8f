// SPDX-License-Identifier: Apache-2.0
// Where operators run, and in which order, before anything is sent away. Beyond the paper.
#pragma once

#include <optional>
#include <string_view>

#include "baechi/cost/cost_model.h"
#include "baechi/plan/request/request.h"
#include "baechi/plan/residency/residency_choice.h"

namespace baechi {

inline constexpr std::string_view kStoreKind = "host";

// The plan for all devices but the store, as if they had room for everything. With one device it is the
// graph's own order. Absent: there is none.
std::optional<ResidencyStart> residency_start(const CostModel& costs, const PlanRequest& request);

}  // namespace baechi
