// SPDX-License-Identifier: Apache-2.0
#include "baechi/simulate/settle.h"

#include <doctest/doctest.h>

#include <cstdint>
#include <optional>

#include "baechi/base/random.h"
#include "baechi/schedule/step_order.h"
#include "unit/graphs.h"
#include "unit/simulate/random_placement.h"
#include "unit/simulate/small_clusters.h"

namespace baechi::testing {
namespace {

// Operators that take no time, so that a schedule does not show every order.
TEST_CASE("settle: what is settled is what the order that its schedule shows gives again") {
  int settled = 0, moved = 0;
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    CAPTURE(seed);
    const OpGraph one = random_dag(seed, {.min_ops = 4,
                                          .max_ops = 9,
                                          .backward_chance = 0.3,
                                          .max_time = 1 + static_cast<std::int64_t>(seed % 2)});
    const Unrolled step = unroll(one, 3);
    const Cluster cluster = byte_per_ns(2, CommunicationMode::kDuplex, Time(0));
    const CostModel costs(step.graph, cluster);
    Random random(seed);
    Placement device;
    for ([[maybe_unused]] const OpId op : one.ops())
      device.push_back(random.chance(0.5) ? kGpu0 : kGpu1);
    Placement of_step;
    for (const OpId op : step.graph.ops()) of_step.push_back(device[step.original[op]]);
    PlacedGraph placed{of_step, std::nullopt};
    if (seed % 4 == 0) placed.order = random_order(costs, of_step, random);
    const std::optional<Trace> trace = simulate_settled(costs, step, placed);
    if (!trace.has_value()) continue;
    ++settled;
    moved += trace->schedule != simulate(costs, placed).schedule;
    const PlacedGraph told{of_step,
                           with_sums_behind(step, order_of(trace->schedule, step.graph, 2))};
    CHECK(simulate(costs, told).schedule == trace->schedule);
  }
  CHECK(settled > 100);
  CHECK(moved > 0);
}

}  // namespace
}  // namespace baechi::testing
