// SPDX-License-Identifier: Apache-2.0
// What asking for all operators takes, whoever is asked (docs/reference/semantics.md, "The host that
// asks"). Beyond the paper.
#pragma once

#include "baechi/base/units.h"
#include "baechi/cost/cost_model.h"

namespace baechi::bounds {

// The hosts share the calls at best, and who is asked for last still has to run. 0 without a host
// time.
Time asking(const CostModel& costs);

}  // namespace baechi::bounds
