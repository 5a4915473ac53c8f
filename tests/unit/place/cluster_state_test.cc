// SPDX-License-Identifier: Apache-2.0
#include "baechi/place/list/cluster_state.h"

#include <doctest/doctest.h>

#include <optional>
#include <vector>

#include "baechi/base/random.h"
#include "baechi/graph/op_graph_builder.h"
#include "baechi/simulate/execution_simulator.h"
#include "unit/graphs.h"
#include "unit/simulate/small_clusters.h"

namespace baechi {
namespace {

Cluster two_devices(CommunicationMode mode) {
  return testing::equal_devices(3, Bytes(1000), Time(10), Bandwidth(1'000'000'000), mode);
}

//   a(2) --5--+
//   b(3) --7--+--> d      all but d on devices 0 and 1; sending takes 10 + bytes
//   c(4) --1--+
OpGraph three_parents() {
  OpGraphBuilder builder;
  const std::int64_t times[] = {2, 3, 4, 1}, bytes[] = {5, 7, 1};
  for (int i = 0; i < 4; ++i)
    testing::timed(builder, {.name = std::string(1, static_cast<char>('a' + i))}, Time(times[i]));
  for (int i = 0; i < 3; ++i)
    builder.connect(builder.add_output(OpId(i), Bytes(bytes[i])), OpId(3));
  return std::move(builder).build();
}

TEST_CASE("cluster state: transfers of one operator queue up behind each other") {
  const OpGraph graph = three_parents();
  const auto arrival = [&](CommunicationMode mode, DeviceId device) {
    const Cluster cluster = two_devices(mode);
    const CostModel costs(graph, cluster);
    const AllowedDevices allowed(costs);
    ClusterState state(costs, allowed, {});
    state.place(OpId(0), DeviceId(0));  // ends at 2
    state.place(OpId(1), DeviceId(0));  // ends at 5
    state.place(OpId(2), DeviceId(1));  // ends at 4
    return state.arrival(OpId(3), device);
  };
  using enum CommunicationMode;
  CHECK(arrival(kParallel, DeviceId(2)).ready == Time(5 + 17));
  CHECK(arrival(kParallel, DeviceId(2)).load == Time(0));
  CHECK(arrival(kParallel, DeviceId(0)).ready == Time(4 + 11));
  // The queue of device 2 takes 15 + 17 + 11, that of device 0 takes 11.
  CHECK(arrival(kSequential, DeviceId(2)).ready == Time(43));
  CHECK(arrival(kSequential, DeviceId(2)).load == Time(43));
  CHECK(arrival(kSequential, DeviceId(0)).ready == Time(4 + 11));
  CHECK(arrival(kSequential, DeviceId(0)).one_source);
  CHECK(arrival(kSequential, DeviceId(1)).ready == Time(15 + 17));
  CHECK_FALSE(arrival(kSequential, DeviceId(2)).one_source);
}

TEST_CASE("cluster state: a received tensor is not sent again") {
  const OpGraph graph = testing::fork_join(3, Time(5), Bytes(10));
  const Cluster cluster = two_devices(CommunicationMode::kSequential);
  const CostModel costs(graph, cluster);
  const AllowedDevices allowed(costs);
  ClusterState state(costs, allowed, {});
  state.place(OpId(0), DeviceId(0));
  CHECK(state.arrival(OpId(1), DeviceId(1)).ready == Time(25));
  state.place(OpId(1), DeviceId(1));  // src's output arrives at 25
  CHECK(state.sent().size() == 1);
  CHECK(state.arrival(OpId(2), DeviceId(1)).ready == Time(25));
  CHECK(state.arrival(OpId(2), DeviceId(1)).load == Time(0));
  CHECK(state.arrival(OpId(2), DeviceId(2)).ready == Time(45));  // after the first transfer
  CHECK(state.earliest_start(OpId(2), DeviceId(1)) == Time(30));
  state.place(OpId(2), DeviceId(1));
  CHECK(state.sent().empty());
}

// Paper eq. (1) is exact when transfers never wait: what the placer believes is what happens.
TEST_CASE("cluster state: without queues its schedule is the simulator's") {
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    CAPTURE(seed);
    const OpGraph graph = testing::random_dag(seed, {.max_ops = 30, .edge_chance = 0.15});
    ClusterSpec spec = testing::random_cluster(seed).spec();
    spec.communication = CommunicationMode::kParallel;
    for (Device& device : spec.devices) device.kind = "gpu";
    const Cluster cluster(spec);
    const CostModel costs(graph, cluster);
    const AllowedDevices allowed(costs);
    ClusterState state(costs, allowed, {});
    Random random(seed);
    for (const OpId op : graph.topological_order()) {
      const DeviceId device(random.below(cluster.num_devices()));
      const Time start = state.earliest_start(op, device);
      state.place(op, device);
      CHECK(state.end(op) == start + *costs.compute_time(op, device));
    }
    const Trace trace = simulate(costs, state.take_plan());
    for (const OpId op : graph.ops()) CHECK(state.end(op) == trace.schedule.slots[op].end);
    CHECK(state.makespan() == trace.schedule.makespan);
  }
}

// The bound that the queue of pairs lives on.
TEST_CASE("cluster state: no earliest start falls while others are placed") {
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    CAPTURE(seed);
    const OpGraph graph = testing::random_dag(
        seed, {.min_ops = 10, .max_ops = 20, .edge_chance = 0.2, .max_tensor_bytes = 40});
    ClusterSpec spec = testing::random_cluster(seed).spec();
    for (Device& device : spec.devices) device.kind = "gpu";
    const Cluster cluster(spec);
    const CostModel costs(graph, cluster);
    const AllowedDevices allowed(costs);
    ClusterState state(costs, allowed, {});
    Random random(seed);
    std::vector<std::vector<Time>> known(graph.num_ops(), std::vector<Time>(cluster.num_devices()));
    for (const OpId op : graph.topological_order()) {
      state.place(op, DeviceId(random.below(cluster.num_devices())));
      for (const OpId other : graph.ops()) {
        const auto in = graph.in_edges(other);
        if (state.placed(other) || !std::all_of(in.begin(), in.end(), [&](const Edge& edge) {
              return state.placed(edge.from);
            }))
          continue;
        for (const DeviceId device : cluster.devices()) {
          const Time start = state.earliest_start(other, device);
          CHECK(start >= known[other.index()][device.index()]);
          known[other.index()][device.index()] = start;
        }
      }
    }
  }
}

}  // namespace
}  // namespace baechi
