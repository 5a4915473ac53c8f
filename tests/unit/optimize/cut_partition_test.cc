// SPDX-License-Identifier: Apache-2.0
#include "baechi/optimize/cut_partition.h"

#include <doctest/doctest.h>

#include <cstdint>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "baechi/base/random.h"
#include "baechi/graph/op_graph_builder.h"
#include "baechi/optimize/cut_graph.h"
#include "baechi/optimize/cut_state.h"
#include "baechi/simulate/execution_simulator.h"
#include "unit/graphs.h"
#include "unit/simulate/small_clusters.h"

namespace baechi {
namespace {

Cluster devices(std::size_t count, Bytes capacity = Bytes(1'000'000)) {
  return testing::equal_devices(count, capacity, Time(7));
}

// Transfers that a partition needs, counted from scratch.
std::int64_t cut_of(const CutGraph& graph, const CutPart& part) {
  std::int64_t cut = 0;
  for (const NetId net : graph.cost.keys()) {
    std::set<DeviceId> touched;
    for (const CutUnitId unit : graph.pins[net]) touched.insert(part[unit]);
    cut += graph.cost[net] * static_cast<std::int64_t>(touched.size() - 1);
  }
  return cut;
}

TEST_CASE("cut: a unit has its operators' work and what they hold at the worst moment") {
  // Outputs of 10 bytes; while c runs, b's and c's are there, like a's and b's while b runs.
  const OpGraph graph = testing::chain({Time(1), Time(2), Time(3)}, Bytes(10), Bytes(5));
  const Cluster cluster = devices(2);
  const CutGraphOf units = cut_graph(CostModel(graph, cluster), each_alone(graph));
  REQUIRE(units.graph.units.size() == 3);
  CHECK(units.graph.units[CutUnitId(1)].work == 2);
  CHECK(units.graph.units[CutUnitId(0)].memory == 5 + 10);
  CHECK(units.graph.units[CutUnitId(1)].memory == 5 + 10);
  CHECK(units.graph.units[CutUnitId(2)].memory == 5);  // the first worst moment is b's
  CHECK(units.graph.cost.size() == 2);
  CHECK(units.graph.cost[NetId(0)] == 7);
}

TEST_CASE("cut: coarsening keeps work and memory, and its caps") {
  for (std::uint64_t seed = 1; seed <= 300; ++seed) {
    CAPTURE(seed);
    const OpGraph graph = testing::random_dag(
        seed, {.min_ops = 10, .max_ops = 40, .edge_chance = 0.1, .group_chance = 0.2});
    const Cluster cluster = devices(3);
    const CutGraph fine = cut_graph(CostModel(graph, cluster), group_labels(graph)).graph;
    std::int64_t largest = 0, memory = 0;
    for (const CutUnit& unit : fine.units) {
      largest = std::max(largest, unit.work);
      memory += unit.memory;
    }
    const UnitCaps caps{std::max(largest, fine.total_work() / 5), memory / 2};
    IdVector<CutUnitId, CutUnitId> coarse_of;
    const std::optional<CutGraph> coarse = coarsen(fine, caps, coarse_of);
    if (!coarse.has_value()) continue;
    CHECK(coarse->units.size() < fine.units.size());
    CHECK(coarse->total_work() == fine.total_work());
    for (const CutUnit& unit : coarse->units) CHECK(unit.work <= caps.work);
    // Any partition of the coarse units cuts what the same partition of the fine ones does.
    Random random(seed);
    CutPart part(coarse->units.size(), DeviceId(0)), fine_part(fine.units.size(), DeviceId(0));
    for (DeviceId& device : part) device = DeviceId(random.below(3));
    for (const CutUnitId unit : fine.units.keys()) fine_part[unit] = part[coarse_of[unit]];
    CHECK(cut_of(*coarse, part) == cut_of(fine, fine_part));
  }
}

TEST_CASE("cut: improving keeps books, caps and devices, and never makes the cut dearer") {
  for (std::uint64_t seed = 1; seed <= 300; ++seed) {
    CAPTURE(seed);
    Random random(seed);
    const OpGraph graph =
        testing::random_dag(seed, {.min_ops = 6, .max_ops = 30, .edge_chance = 0.15});
    const Cluster cluster = devices(3);
    const CutGraph units = cut_graph(CostModel(graph, cluster), each_alone(graph)).graph;
    DeviceCaps caps(3);
    for (DeviceCap& cap : caps) cap = {units.total_work(), 1'000'000};
    CutPart part(units.units.size(), DeviceId(0));
    for (DeviceId& device : part) device = DeviceId(random.below(3));
    CutState state(units, caps);
    state.start_from(part);
    CHECK(state.cut() == cut_of(units, part));
    CHECK(state.excess() == 0);
    state.improve(random, 5);
    const std::int64_t improved = state.cut();
    CHECK(improved == cut_of(units, state.part()));
    CHECK(improved <= cut_of(units, part));
    state.climb(5);
    CHECK(state.cut() == cut_of(units, state.part()));
    CHECK(state.cut() <= improved);
    CHECK(state.excess() == 0);
  }
}

// The climb as it is described, every gain counted from scratch.
class NaiveClimb {
 public:
  NaiveClimb(const CutGraph& graph, const DeviceCaps& caps, CutPart part)
      : graph_(graph), caps_(caps), part_(std::move(part)), seen_(graph.units.size()) {}

  CutPart once() {
    constexpr int kPatience = 60;
    list_movable();
    CutPart best = part_;
    for (int since = 0; since <= kPatience && !listed_.empty(); ++since) {
      std::optional<Move> chosen;
      for (std::size_t i = 0; i < listed_.size(); ++i)
        for (const DeviceId to : caps_.keys())
          if (const std::optional<std::int64_t> gain = gain_of(listed_[i], to);
              gain.has_value() && (!chosen.has_value() || *gain > chosen->gain))
            chosen = {i, to, *gain};
      if (!chosen.has_value()) break;
      const CutUnitId unit = listed_[chosen->at];
      listed_[chosen->at] = listed_.back();
      listed_.pop_back();
      part_[unit] = chosen->to;
      for (const NetId net : graph_.nets[unit]) list(graph_.pins[net]);
      if (cut_of(graph_, part_) >= cut_of(graph_, best)) continue;
      best = part_;
      since = -1;
    }
    return best;
  }

 private:
  struct Move {
    std::size_t at;  // in the list
    DeviceId to;
    std::int64_t gain;
  };

  template <class Some>
  void list(const Some& units) {
    for (const CutUnitId unit : units)
      if (std::exchange(seen_[unit], 1) == 0) listed_.push_back(unit);
  }

  void list_movable() {
    for (const NetId net : graph_.cost.keys())
      for (const CutUnitId unit : graph_.pins[net])
        if (part_[unit] != part_[graph_.pins[net].front()]) {
          list(graph_.pins[net]);
          break;
        }
    for (const CutUnitId unit : graph_.units.keys())
      if (graph_.nets[unit].empty() || !has_room(part_[unit], {}))
        list(std::vector<CutUnitId>{unit});
  }

  bool has_room(DeviceId device, std::optional<CutUnitId> for_one) const {
    DeviceCap load;
    for (const CutUnitId unit : graph_.units.keys())
      if (part_[unit] == device || unit == for_one) {
        load.work += graph_.units[unit].work;
        load.memory += graph_.units[unit].memory;
      }
    return load.work <= caps_[device].work && load.memory <= caps_[device].memory;
  }

  std::optional<std::int64_t> gain_of(CutUnitId unit, DeviceId to) const {
    if (part_[unit] == to || (graph_.units[unit].devices >> to.index() & 1) == 0) return {};
    if (!has_room(to, unit)) return {};
    CutPart moved = part_;
    moved[unit] = to;
    return cut_of(graph_, part_) - cut_of(graph_, moved);
  }

  const CutGraph& graph_;
  const DeviceCaps& caps_;
  CutPart part_;
  std::vector<CutUnitId> listed_;
  IdVector<CutUnitId, char> seen_;
};

TEST_CASE("cut: a climb makes the moves that it would if it counted everything anew") {
  std::size_t climbed = 0;
  for (std::uint64_t seed = 1; seed <= 60; ++seed) {
    CAPTURE(seed);
    Random random(seed);
    const OpGraph graph = testing::random_dag(
        seed, {.min_ops = 8, .max_ops = 20, .edge_chance = 0.2, .cpu_chance = 0.8});
    const Cluster cluster = devices(4);
    const CutGraph units = cut_graph(CostModel(graph, cluster), each_alone(graph)).graph;
    std::int64_t memory = 0;
    for (const CutUnit& unit : units.units) memory += unit.memory;
    DeviceCaps caps(4);
    for (DeviceCap& cap : caps)
      cap = {units.total_work() * random.between(20, 60) / 100,
             memory * random.between(20, 60) / 100};
    CutPart part(units.units.size(), DeviceId(0));
    for (DeviceId& device : part) device = DeviceId(random.below(4));
    CutState state(units, caps);
    state.start_from(part);
    state.climb(1);
    CHECK(state.part() == NaiveClimb(units, caps, part).once());
    climbed += state.part() == part ? 0U : 1U;
  }
  CHECK(climbed > 30);
}

//   a0 -> a1 -> ... -> a9 --+
//                           +--> end       large tensors along the two ways, small ones at the end
//   b0 -> b1 -> ... -> b9 --+
OpGraph two_ways() {
  OpGraphBuilder builder("two ways");
  const auto add = [&](const std::string& name) {
    return testing::timed(builder, {.name = name}, Time(100));
  };
  std::vector<TensorId> ends;
  for (const char way : {'a', 'b'}) {
    std::optional<TensorId> previous;
    for (int i = 0; i < 10; ++i) {
      const OpId op = add(way + std::to_string(i));
      if (previous.has_value()) builder.connect(*previous, op);
      previous = builder.add_output(op, Bytes(i == 9 ? 1 : 1'000));
    }
    ends.push_back(*previous);
  }
  const OpId end = add("end");
  for (const TensorId tensor : ends) builder.connect(tensor, end);
  return std::move(builder).build();
}

TEST_CASE("cut: two independent ways go to two devices") {
  const OpGraph graph = two_ways();
  const Cluster cluster =
      testing::equal_devices(2, Bytes(100'000), Time(10), Bandwidth(1'000'000'000));
  const CostModel costs(graph, cluster);
  const std::optional<DeviceCut> cut = cut_partition(costs, each_alone(graph));
  REQUIRE(cut.has_value());
  CHECK(cut->over == Bytes(0));
  CHECK(cut->schedule.makespan == Time(10 * 100 + 10 + 1 + 100));
  const Placement& device = cut->schedule.placed.device;
  CHECK(device[*graph.find("a0")] != device[*graph.find("b0")]);
}

TEST_CASE("cut: it says how far what it returns is over, keeps groups and runs where it may") {
  std::size_t fits = 0, over = 0;
  for (std::uint64_t seed = 1; seed <= 300; ++seed) {
    CAPTURE(seed);
    const OpGraph graph = testing::random_dag(seed, {.min_ops = 4,
                                                     .max_ops = 30,
                                                     .edge_chance = 0.15,
                                                     .group_chance = 0.3,
                                                     .pin_chance = 0.1,
                                                     .cpu_chance = 0.7});
    const Cluster cluster = testing::random_cluster(seed, Bytes(seed % 2 == 0 ? 250 : 50));
    const CostModel costs(graph, cluster);
    const std::optional<DeviceCut> cut = cut_partition(costs, group_labels(graph));
    if (!cut.has_value()) continue;
    const PlacedGraph& placed = cut->schedule.placed;
    for (const GroupId group : graph.groups())
      for (const OpId op : graph.members(group))
        CHECK(placed.device[op] == placed.device[graph.members(group).front()]);
    for (const OpId op : graph.ops()) CHECK(costs.may_run(op, placed.device[op]));
    const Trace trace = simulate(costs, placed);
    CHECK(trace.schedule.makespan == cut->schedule.makespan);
    CHECK(total_excess(trace, cluster) == cut->over);
    ++(cut->over == Bytes(0) ? fits : over);
    const DeviceCuts cuts(costs, group_labels(graph));
    for (const std::uint64_t other : {std::uint64_t{2}, std::uint64_t{1}})
      CHECK(cuts.cut({.seed = other})->schedule.placed.device ==
            cut_partition(costs, group_labels(graph), {.seed = other})->schedule.placed.device);
    CHECK(cuts.cut()->schedule.placed.device == placed.device);
  }
  CHECK(fits > 50);
  CHECK(over > 20);
}

}  // namespace
}  // namespace baechi
