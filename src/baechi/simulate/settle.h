// SPDX-License-Identifier: Apache-2.0
// A step of micro-batches with the order that its file would tell. Beyond the paper.
#pragma once

#include <optional>

#include "baechi/cost/cost_model.h"
#include "baechi/graph/unroll.h"
#include "baechi/schedule/schedule.h"
#include "baechi/simulate/execution_simulator.h"

namespace baechi {

// Replays `placed` until the order that can be read off the schedule, with every sum right behind
// its last copy, gives the schedule that it was read off. Operators that take no time can run in an
// order that a schedule does not show, so this may be another step than that of `placed`, and there
// may be none.
// `costs` are of step.graph. Throws InputError as simulate() does.
std::optional<Trace> simulate_settled(const CostModel& costs, const Unrolled& step,
                                      PlacedGraph placed, const SimulateOptions& options = {});

}  // namespace baechi
