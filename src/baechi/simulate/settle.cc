// SPDX-License-Identifier: Apache-2.0
#include "baechi/simulate/settle.h"

#include <utility>

#include "baechi/schedule/step_order.h"

namespace baechi {

std::optional<Trace> simulate_settled(const CostModel& costs, const Unrolled& step,
                                      PlacedGraph placed, const SimulateOptions& options) {
  Trace trace = simulate(costs, placed, options);
  if (step.micro_batches == 1) return trace;
  constexpr int kMostReplays = 8;
  for (int i = 0; i < kMostReplays; ++i) {
    placed.order =
        with_sums_behind(step, order_of(trace.schedule, step.graph, costs.cluster().num_devices()));
    Trace again = simulate(costs, placed, options);
    if (again.schedule == trace.schedule) return again;
    trace = std::move(again);
  }
  return std::nullopt;
}

}  // namespace baechi
