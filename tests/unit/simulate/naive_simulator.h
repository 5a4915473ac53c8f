// SPDX-License-Identifier: Apache-2.0
// The rules of docs/reference/semantics.md as a program that looks at everything at every
// nanosecond: slow, plain, and without any code of simulate/. Its answers are what the simulator's
// must equal.
#pragma once

#include <optional>

#include "baechi/cost/cost_model.h"
#include "baechi/schedule/schedule.h"
#include "baechi/simulate/execution_simulator.h"

namespace baechi::testing {

// With memory curves; absent when the order waits for itself.
std::optional<Trace> naive_simulate(const CostModel& costs, const PlacedGraph& placed);

}  // namespace baechi::testing
