// SPDX-License-Identifier: Apache-2.0
#include "baechi/optimize/list_schedule.h"

#include <doctest/doctest.h>

#include "baechi/base/random.h"
#include "baechi/simulate/execution_simulator.h"
#include "unit/graphs.h"

namespace baechi {
namespace {

TEST_CASE("list schedule: critical times count compute and necessary transfers") {
  const OpGraph graph = testing::figure_1();
  const Cluster cluster = testing::unit_latency_cluster(2, Bytes(100));
  const CostModel costs(graph, cluster);
  Placement placement(6, DeviceId(0));
  // a3 b3 c3 d1 on the upper way: 1 + 3 + 3 + 1.
  CHECK(critical_times(costs, placement)[OpId(0)] == Time(8));
  placement[*graph.find("c")] = DeviceId(1);
  const IdVector<OpId, Time> times = critical_times(costs, placement);
  CHECK(times[OpId(0)] == Time(8 + 2));
  CHECK(times[*graph.find("c")] == Time(3 + 1 + 1));
  CHECK(times[*graph.find("e")] == Time(5));
}

TEST_CASE("list schedule: the operator with the longest way to the end goes first") {
  // src, then eight equal operators; m5 has the largest priority, the others go in order.
  const OpGraph graph = testing::fork_join(8, Time(5), Bytes(1));
  const Cluster cluster = testing::unit_latency_cluster(1, Bytes(100));
  IdVector<OpId, Time> priority(graph.num_ops(), Time(1));
  priority[*graph.find("m5")] = Time(2);
  const ListSchedule schedule =
      list_schedule(CostModel(graph, cluster), Placement(graph.num_ops(), DeviceId(0)), priority);
  const std::vector<OpId>& order = (*schedule.placed.order)[DeviceId(0)];
  CHECK(order[1] == *graph.find("m5"));
  CHECK(order[2] == *graph.find("m0"));
  CHECK(order.back() == *graph.find("sink"));
  CHECK(schedule.makespan == Time(50));
}

TEST_CASE("list schedule: the simulator replays its orders in the time foreseen") {
  for (std::uint64_t seed = 1; seed <= 1000; ++seed) {
    CAPTURE(seed);
    Random random(seed);
    const OpGraph graph =
        testing::random_dag(seed, {.max_ops = 16, .cpu_chance = 1.0, .max_time = 1'000'000'000});
    const Cluster cluster = testing::random_cluster(seed);
    const CostModel costs(graph, cluster);
    Placement placement(graph.num_ops(), DeviceId(0));
    for (DeviceId& device : placement) device = DeviceId(random.below(cluster.num_devices()));
    const ListSchedule schedule = list_schedule(costs, placement);
    CHECK(simulate(costs, schedule.placed).schedule.makespan == schedule.makespan);
  }
}

}  // namespace
}  // namespace baechi
