// SPDX-License-Identifier: Apache-2.0
// The Execution Simulator (Paper 4.2): replays a placement event by event and tells when everything
// happens and what memory it takes. Its rules are written down in docs/reference/semantics.md.
#pragma once

#include "baechi/cost/cost_model.h"
#include "baechi/schedule/schedule.h"
#include "baechi/simulate/trace.h"

namespace baechi {

// Throws InputError when the placement breaks a rule that replay depends on: an operator on a
// device that cannot run it, or an order that is no partition of the operators or that waits for
// itself (naming the operators at which every device is stuck). Exceeding a capacity is not an
// error here. Linear in events: O((ops + edges + transfers) log devices), and without an order one
// priority queue of startable operators per device. To replay many placements of one graph, use a
// Simulator (simulate/simulator.h).
Trace simulate(const CostModel& costs, const PlacedGraph& placed, const SimulateOptions& = {});

}  // namespace baechi
