// SPDX-License-Identifier: Apache-2.0
// Placements in which micro-batches go round all devices several times. Beyond the paper.
#pragma once

#include <cstdint>
#include <optional>

#include "baechi/cost/cost_model.h"
#include "baechi/plan/steps/starts_in_parts.h"

namespace baechi {

// Stages that take about as long as each other, on the devices but the store in turn, from the first
// forward to the last backward operator: where weights are away, a backward operator need not be
// where its forward operator is, unless groups say so. Of stages of several lengths those with the
// shortest step if everything had room. About so many operators are simulated for it.
std::optional<SequenceOfOne> in_rounds(const CostModel& costs, std::uint32_t micro_batches,
                                       std::int64_t most);

}  // namespace baechi
