// SPDX-License-Identifier: Apache-2.0
#include "baechi/simulate/block_replay.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "baechi/base/random.h"
#include "baechi/optimize/plan_order.h"
#include "baechi/simulate/execution_simulator.h"
#include "baechi/simulate/memory_ceiling.h"
#include "unit/graph_sketch.h"
#include "unit/simulate/random_placement.h"
#include "unit/simulate/small_clusters.h"

namespace baechi::testing {
namespace {

using simulation::BlockReplay;
using simulation::Copy;
using simulation::MemoryCeiling;

// Puts one operator as far to the front as its parents allow.
void hoist(const OpGraph& graph, OpId op, std::vector<OpId>& sequence) {
  auto at = std::ranges::find(sequence, op);
  const auto is_parent = [&](OpId other) {
    return std::ranges::any_of(graph.in_edges(op),
                               [&](const Edge& edge) { return edge.from == other; });
  };
  for (; at != sequence.begin() && !is_parent(*(at - 1)); --at) std::swap(*at, *(at - 1));
}

std::vector<std::tuple<TensorId, DeviceId, Time, Time>> sorted(std::span<const Copy> copies) {
  std::vector<std::tuple<TensorId, DeviceId, Time, Time>> result;
  for (const Copy& copy : copies) result.emplace_back(copy.tensor, copy.to, copy.start, copy.end);
  std::ranges::sort(result);
  return result;
}

std::vector<std::tuple<TensorId, DeviceId, Time, Time>> sorted(
    std::span<const Transfer> transfers) {
  std::vector<std::tuple<TensorId, DeviceId, Time, Time>> result;
  for (const Transfer& transfer : transfers)
    result.emplace_back(transfer.tensor, transfer.to, transfer.start, transfer.end);
  std::ranges::sort(result);
  return result;
}

// A placement and orders that change a little from replay to replay.
struct Walk {
  const CostModel& costs;
  PlacedGraph placed;
  std::vector<OpId> sequence;
  BlockReplay replay{costs};

  Walk(const CostModel& model, const Placement& placement, Random& random)
      : costs(model), placed{placement, random_order(model, placement, random)} {
    sequence = plan_order(model.graph(), *placed.order);
    replay.start(placed);
  }

  // The last place in the sequence that changes.
  std::int64_t go(Random& random) {
    const OpGraph& graph = costs.graph();
    const OpId op(random.below(graph.num_ops()));
    const std::int64_t last = std::ranges::find(sequence, op) - sequence.begin();
    const DeviceId old = placed.device[op];
    const DeviceId device(random.below(costs.cluster().num_devices()));
    const bool changes_order = random.chance(0.3);
    if (changes_order) hoist(graph, op, sequence);
    if (costs.compute_time(op, device).has_value()) {
      placed.device[op] = device;
      replay.move(op, device);
      if (changes_order) replay.reorder(device);
    }
    if (changes_order) replay.reorder(old);
    placed.order = device_order(sequence, placed.device, costs.cluster().num_devices());
    return last;
  }
};

// Shows `look` a walk on a random graph and cluster, if a placement is found; some graphs are larger.
template <class Look>
void on_random_walk(std::uint64_t seed, std::uint64_t kind, double larger, const Look& look) {
  CAPTURE(seed);
  Random random(seed ^ kind);
  RandomDag limits = varied_limits(random);
  if (random.chance(larger)) limits.max_ops = 40;
  const OpGraph graph = random_dag(seed, limits);
  const Cluster cluster = varied_cluster(seed, random);
  const CostModel costs(graph, cluster);
  const std::optional<Placement> placement = random_placement(costs, random);
  if (!placement.has_value()) return;
  Walk walk(costs, *placement, random);
  look(walk, random);
}

TEST_CASE("block replay: what it takes grows with arrivals that no cache holds") {
  const auto work_of = [](std::size_t readers) {
    GraphSketch sketch;
    sketch.op("first", 1);
    for (std::size_t i = 0; i < readers; ++i) {
      const std::string name = std::to_string(i);
      sketch.op(name, 1).control("first", name);
    }
    const OpGraph graph = sketch.build();
    const OpId first(0);
    const Cluster cluster = byte_per_ns(2, CommunicationMode::kParallel, Time(0));
    const CostModel costs(graph, cluster);
    PlacedGraph placed{Placement(graph.num_ops(), DeviceId(1)), DeviceOrder(2)};
    placed.device[first] = DeviceId(0);
    for (const OpId op : graph.topological_order())
      (*placed.order)[placed.device[op]].push_back(op);
    BlockReplay replay(costs);
    replay.start(placed);
    for (int times = 0; times < 2; ++times) replay.makespan(*placed.order);
    CHECK(replay.num_blocks() == readers + 1);
    return replay.work() - static_cast<std::int64_t>(replay.num_blocks());
  };
  CHECK(work_of(3) == 0);
  CHECK(work_of(4'000) == 0);
  CHECK(work_of(6'000) == 1'000);
}

TEST_CASE("block replay: tells from move to move what a whole replay tells") {
  std::size_t compared = 0, joined = 0, tight = 0, roomy = 0, exact = 0, peaks = 0;
  const auto compare = [&](Walk& walk, Random& random) {
    const OpGraph& graph = walk.costs.graph();
    const Cluster& cluster = walk.costs.cluster();
    MemoryCeiling ceiling(walk.costs, walk.replay.edges());
    for (int move = 0; move < 6; ++move) {
      CAPTURE(move);
      if (move > 0) walk.go(random);
      const Trace trace = simulate(walk.costs, walk.placed);
      REQUIRE(walk.replay.makespan(*walk.placed.order) == trace.schedule.makespan);
      IdVector<OpId, OpSlot> slots;
      walk.replay.tell(*walk.placed.order, slots);
      REQUIRE(slots == trace.schedule.slots);
      REQUIRE(sorted(walk.replay.copies()) == sorted(trace.schedule.transfers));

      const bool fits = !find_overflow(trace, cluster).has_value();
      if (walk.replay.has_room_for_all()) REQUIRE(fits);
      if (ceiling.fits(*walk.placed.order, slots, walk.replay.copies())) REQUIRE(fits);
      for (const DeviceId device : cluster.devices()) {
        REQUIRE(ceiling.most_held(device) >= trace.devices[device].peak);
        exact += ceiling.most_held(device) == trace.devices[device].peak ? 1U : 0U;
        ++peaks;
      }
      ++compared;
      joined += walk.replay.num_blocks() < graph.num_ops() ? 1U : 0U;
      tight += fits ? 0U : 1U;
      roomy += walk.replay.has_room_for_all() ? 1U : 0U;
    }
  };
  for (std::uint64_t seed = 0; seed < 2500; ++seed) on_random_walk(seed, 0xb10c, 0.2, compare);
  // The instances are worth it, and the ceiling mostly is what is held.
  CHECK(compared > 12'000);
  CHECK(joined * 2 > compared);
  CHECK(tight * 20 > compared);
  CHECK(roomy * 20 > compared);
  CHECK(exact * 10 > peaks * 6);
}

// gpu:0   a -> b -> c -> d    c's output goes to both devices: a, b and c are one block, d is one,
// gpu:1              \-> e    and e is one
TEST_CASE("block replay: joins neighbours that nobody elsewhere waits for") {
  const OpGraph graph = GraphSketch()
                            .ops({{"a", 3}, {"b", 0}, {"c", 5}, {"d", 2}, {"e", 4}})
                            .tensors({{"a", 1, {"b"}}, {"b", 1, {"c"}}, {"c", 1, {"d", "e"}}})
                            .build();
  const Cluster cluster = byte_per_ns(2, CommunicationMode::kSequential);
  const CostModel costs(graph, cluster);
  PlacedGraph placed = in_order(graph, {{"a", "b", "c", "d"}, {"e"}});
  BlockReplay replay(costs);
  replay.start(placed);
  CHECK(replay.makespan(*placed.order) == Time(13));
  CHECK(replay.num_blocks() == 3);

  replay.move(op_named(graph, "e"), kGpu0);
  placed = in_order(graph, {{"a", "b", "c", "d", "e"}, {}});
  CHECK(replay.makespan(*placed.order) == Time(14));
  CHECK(replay.num_blocks() == 1);
}

TEST_CASE("block replay: a step beyond a limit is told as one, any other as it is") {
  std::size_t beyond = 0, within = 0;
  const auto compare = [&](Walk& walk, Random& random) {
    Time kept = walk.replay.makespan(*walk.placed.order);
    walk.replay.keep();
    std::int64_t changed = 0;
    for (int move = 0; move < 12; ++move) {
      CAPTURE(move);
      changed = std::max(changed, walk.go(random));
      IdVector<OpId, std::int64_t> rank(walk.sequence.size());
      for (std::size_t i = 0; i < walk.sequence.size(); ++i)
        rank[walk.sequence[i]] = static_cast<std::int64_t>(i);
      const Time whole = simulate(walk.costs, walk.placed).schedule.makespan;
      const Time most = random.chance(0.3) ? whole - Time(1) : random.chance(0.3) ? whole : kept;
      const Time told = walk.replay.makespan(*walk.placed.order,
                                             {.most = most, .rank = &rank, .changed = changed});
      if (whole > most) {
        ++beyond;
        CHECK(told > most);
        continue;
      }
      ++within;
      CHECK(told == whole);
      if (random.chance(0.5)) continue;
      walk.replay.keep();
      kept = whole;
      changed = 0;
    }
  };
  for (std::uint64_t seed = 0; seed < 1500; ++seed) on_random_walk(seed, 0x11417, 0.3, compare);
  CHECK(beyond > 3'000);
  CHECK(within > 3'000);
}

}  // namespace
}  // namespace baechi::testing
