// SPDX-License-Identifier: Apache-2.0
#include "baechi/plan/fit/fit_walk.h"

#include <doctest/doctest.h>

#include <ctime>
#include <vector>

#include "baechi/plan/fit/memory_needs.h"
#include "unit/graphs.h"

namespace baechi {
namespace {

double seconds_of_walking(const OpGraph& graph, std::size_t num_devices) {
  const Cluster cluster = testing::unit_latency_cluster(num_devices, Bytes(1));
  const CostModel costs(graph, cluster);
  const Units units(costs);
  const std::clock_t begin = std::clock();
  const FitWalked walked = walk_to_fit(costs, units, {.simulated_ops = 100'000});
  CHECK_FALSE(walked.placed.has_value());
  return static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC;
}

// Nothing of a chain on one device can be exchanged: every step is refused, which is work, too.
TEST_CASE("fit walk: where nothing can move it takes no longer than where all can") {
  const OpGraph graph = testing::chain(std::vector<Time>(100, Time(1)), Bytes(1), Bytes(1));
  const double moving = seconds_of_walking(graph, 4), stuck = seconds_of_walking(graph, 1);
  CAPTURE(moving);
  CHECK(stuck <= 2 * moving);
}

}  // namespace
}  // namespace baechi
