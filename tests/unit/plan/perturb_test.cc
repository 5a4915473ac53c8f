// SPDX-License-Identifier: Apache-2.0
#include "baechi/plan/perturb.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <set>

#include "baechi/base/error.h"
#include "baechi/io/graph/write_graph.h"
#include "baechi/simulate/execution_simulator.h"
#include "unit/graphs.h"
#include "unit/simulate/small_clusters.h"

namespace baechi::testing {
namespace {

TEST_CASE("perturb: every cost is within its part, draws differ by seed and repeat") {
  const OpGraph graph = chain(std::vector<Time>(200, Time(1000)), Bytes(1000));
  const KindId kind(0);
  std::set<std::int64_t> times, sizes;
  const OpGraph wrong = perturbed(graph, 0.2, 7);
  for (const OpId op : graph.ops()) times.insert(wrong.times(kind)[op]->count());
  for (const TensorId tensor : graph.tensors()) sizes.insert(wrong.size(tensor).count());
  for (const auto& values : {times, sizes}) {
    CHECK(*values.begin() >= 800);
    CHECK(*values.begin() < 820);
    CHECK(*values.rbegin() <= 1200);
    CHECK(*values.rbegin() > 1180);
    CHECK(values.size() > 100);
  }
  CHECK(times != sizes);
  CHECK(graph_to_json(perturbed(graph, 0.2, 7)) == graph_to_json(wrong));
  CHECK(graph_to_json(perturbed(graph, 0.2, 8)) != graph_to_json(wrong));
  CHECK(graph_to_json(perturbed(graph, 0, 8)) == graph_to_json(graph));
  CHECK_THROWS_AS(perturbed(graph, 1.1, 1), InputError);
}

TEST_CASE("perturb: the worst step is one of the samples', whatever the threads") {
  const OpGraph graph = chain({Time(1000), Time(2000), Time(500)}, Bytes(0));
  const Cluster cluster = unit_latency_cluster(2, Bytes(100));
  const CostModel costs(graph, cluster);
  const PlacedGraph one{Placement(3, DeviceId(0)), std::nullopt},
      two{Placement{DeviceId(0), DeviceId(1), DeviceId(0)}, std::nullopt};
  Time longest;
  for (std::uint64_t seed = 5; seed < 15; ++seed) {
    const OpGraph wrong = perturbed(graph, 0.3, seed);
    longest = std::max(longest, simulate(CostModel(wrong, cluster), one).schedule.makespan);
  }
  const auto worst = worst_steps(costs, {&one, &two}, {.fraction = 0.3, .samples = 10, .seed = 5});
  CHECK(worst[0] == longest);
  CHECK(worst[1] == longest + Time(2));  // two transfers of a nanosecond
  CHECK(worst_steps(costs, {&one, &two},
                    {.fraction = 0.3, .samples = 10, .seed = 5, .threads = 3}) == worst);
}

}  // namespace
}  // namespace baechi::testing
