// SPDX-License-Identifier: Apache-2.0
// The cluster as if it had more memory: what does memory cost? Beyond the paper.
#pragma once

#include <optional>

#include "baechi/cluster/cluster.h"
#include "baechi/cost/cost_model.h"

namespace baechi {

// The cluster with so many times the memory, or with room for everything on every device.
Cluster roomier(const CostModel& costs, std::optional<double> times);

}  // namespace baechi
