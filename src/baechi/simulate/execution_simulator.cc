// SPDX-License-Identifier: Apache-2.0
#include "baechi/simulate/execution_simulator.h"

#include "baechi/simulate/simulator.h"

namespace baechi {

Trace simulate(const CostModel& costs, const PlacedGraph& placed, const SimulateOptions& options) {
  return Simulator(costs).trace(placed, options);
}

}  // namespace baechi
