// SPDX-License-Identifier: Apache-2.0
// What a step of micro-batches takes at least, told from the graph of one of them. Beyond the paper.
#pragma once

#include <cstdint>
#include <optional>

#include "baechi/base/units.h"
#include "baechi/cost/cost_model.h"

namespace baechi {

// Of the graph of one micro-batch: the load of all micro-batches; and for what shares a device,
// its work in all of them between the longest paths before and after it in one. Weaker than
// lower_bounds() of the unrolled graph, in the time that one micro-batch takes. Valid with any
// second runs. Nothing where something can run nowhere.
std::optional<Time> least_step(const CostModel& micro_batch, std::uint32_t micro_batches);

}  // namespace baechi
