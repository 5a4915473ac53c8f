// SPDX-License-Identifier: Apache-2.0
// What every placer must do, whatever its idea: the suite walks all_placers().
#include <doctest/doctest.h>

#include <algorithm>
#include <string>
#include <variant>
#include <vector>

#include "baechi/base/error.h"
#include "baechi/cost/cost_model.h"
#include "baechi/graph/op_graph_builder.h"
#include "baechi/place/placer.h"
#include "unit/graphs.h"

namespace baechi {
namespace {

using testing::random_cluster;
using testing::random_dag;

constexpr testing::RandomDag kMixed{.max_ops = 14,
                                    .group_chance = 0.3,
                                    .backward_chance = 0.3,
                                    .pin_chance = 0.05,
                                    .cpu_chance = 0.7};

// `expert` needs a placement: everything on gpu:0 keeps every rule when all may run there.
struct Expert {
  Placement placement;
  PlaceOptions options;
  explicit Expert(const OpGraph& graph) : placement(graph.num_ops(), DeviceId(0)) {
    options.expert = &placement;
  }
};

void check_placed(const CostModel& costs, const PlacedGraph& placed) {
  const OpGraph& graph = costs.graph();
  REQUIRE(placed.device.size() == graph.num_ops());
  for (const OpId op : graph.ops()) {
    CHECK(costs.may_run(op, placed.device[op]));
    if (const auto group = graph[op].group)
      CHECK(placed.device[graph.members(*group).front()] == placed.device[op]);
  }
  REQUIRE(placed.order.has_value());
  REQUIRE(placed.order->size() == costs.cluster().num_devices());
  // The order is a partition of the operators, and replaying it never waits for itself.
  IdVector<OpId, int> seen(graph.num_ops());
  for (const DeviceId device : placed.order->keys())
    for (const OpId op : (*placed.order)[device]) {
      CHECK(placed.device[op] == device);
      ++seen[op];
    }
  CHECK(std::all_of(seen.begin(), seen.end(), [](int times) { return times == 1; }));
  IdVector<OpId, bool> done(graph.num_ops());
  IdVector<DeviceId, std::size_t> next(placed.order->size());
  for (bool progress = true; progress;) {
    progress = false;
    for (const DeviceId device : next.keys()) {
      const std::vector<OpId>& ops = (*placed.order)[device];
      while (next[device] < ops.size()) {
        const auto in = graph.in_edges(ops[next[device]]);
        if (!std::all_of(in.begin(), in.end(), [&](const Edge& e) { return bool(done[e.from]); }))
          break;
        done[ops[next[device]++]] = true;
        progress = true;
      }
    }
  }
  CHECK(std::all_of(done.begin(), done.end(), [](bool is_done) { return is_done; }));
}

TEST_CASE("all placers: random graphs are placed within the rules, and the same way twice") {
  for (const PlacerEntry& placer : all_placers()) {
    CAPTURE(placer.name);
    std::size_t placed_graphs = 0;
    for (std::uint64_t seed = 0; seed < 300; ++seed) {
      CAPTURE(seed);
      const OpGraph graph = random_dag(seed, kMixed);
      const Cluster cluster = random_cluster(seed);
      const CostModel costs(graph, cluster);
      const Expert expert(graph);
      const PlaceResult result = placer.place(costs, expert.options);
      const PlaceResult again = placer.place(costs, expert.options);
      REQUIRE(result.index() == again.index());
      if (const auto* placed = std::get_if<PlacedGraph>(&result)) {
        ++placed_graphs;
        check_placed(costs, *placed);
        CHECK(placed->device == std::get<PlacedGraph>(again).device);
        CHECK(placed->order == std::get<PlacedGraph>(again).order);
      }
    }
    CHECK(placed_graphs > 250);  // memory is ample, and only gpu:0 is sure to run everything
  }
}

TEST_CASE("all placers: an operator that no device can run is named") {
  OpGraphBuilder builder;
  for (const char* name : {"a", "b", "c"}) {
    const OpId op = builder.add_operator({.name = name});
    builder.set_time(op, *name == 'b' ? "tpu" : "gpu", Time(5));
  }
  builder.connect(builder.add_output(OpId(0), Bytes(4)), OpId(1));
  builder.connect(builder.add_output(OpId(1), Bytes(4)), OpId(2));
  const OpGraph graph = std::move(builder).build();
  const Cluster cluster = testing::unit_latency_cluster(2, Bytes(100));
  const CostModel costs(graph, cluster);
  for (const PlacerEntry& placer : all_placers()) {
    CAPTURE(placer.name);
    if (placer.name == "expert") continue;  // there it is the user's error
    const PlaceResult result = placer.place(costs, {});
    REQUIRE(std::holds_alternative<DoesNotFit>(result));
    CHECK(std::get<DoesNotFit>(result).op == OpId(1));
    CHECK(std::get<DoesNotFit>(result).short_by == Bytes(0));
  }
}

TEST_CASE("all placers: weights that no device holds are an answer with the bytes short") {
  const OpGraph graph = testing::chain({Time(1), Time(1)}, Bytes(0), Bytes(50));
  const Cluster cluster = testing::unit_latency_cluster(2, Bytes(40));
  const CostModel costs(graph, cluster);
  for (const PlacerEntry& placer : all_placers()) {
    CAPTURE(placer.name);
    if (placer.name == "expert" || placer.name == "single") continue;
    const PlaceResult result = placer.place(costs, {});
    REQUIRE(std::holds_alternative<DoesNotFit>(result));
    CHECK(std::get<DoesNotFit>(result).op == OpId(0));
    CHECK(std::get<DoesNotFit>(result).short_by == Bytes(10));
  }
}

TEST_CASE("all placers: an unknown name lists the known ones") {
  CHECK(find_placer("m-topo").name == "m-topo");
  CHECK_THROWS_WITH_AS(find_placer("m-what"), doctest::Contains("m-topo, "), InputError);
}

}  // namespace
}  // namespace baechi
