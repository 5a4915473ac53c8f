// SPDX-License-Identifier: Apache-2.0
// How good `pipeline` is: its parts against every choice there is, the whole on a fixed set of steps
// whose lengths and memory may only become less.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "baechi/base/random.h"
#include "baechi/place/pipeline/blocks.h"
#include "baechi/place/pipeline/division.h"
#include "baechi/place/pipeline/pipeline.h"
#include "baechi/place/pipeline/play.h"
#include "baechi/place/pipeline/rules.h"
#include "baechi/place/topological_sequences.h"
#include "baechi/simulate/execution_simulator.h"
#include "unit/graph/training_sketches.h"
#include "unit/place/pipeline_graphs.h"
#include "unit/simulate/small_clusters.h"

namespace baechi::pipeline {
namespace {

using testing::random_training;
using testing::training;

Cluster drawn_cluster(Random& random, std::size_t count, Bytes capacity) {
  ClusterSpec spec =
      testing::equal_devices(count, capacity, Time(random.between(0, 8)), Bandwidth(50'000'000'000))
          .spec();
  for (Device& device : spec.devices)
    if (random.chance(0.4)) device.speed = Speed(500'000);
  return Cluster(std::move(spec));
}

// In a V.
std::vector<DeviceId> there_and_back(const std::vector<DeviceId>& order) {
  std::vector<DeviceId> both = order;
  both.insert(both.end(), order.rbegin(), order.rend());
  return both;
}

std::vector<std::int64_t> drawn_times(Random& random, std::size_t layers, std::int64_t most = 20) {
  std::vector<std::int64_t> times;
  for (std::size_t i = 0; i < layers; ++i) times.push_back(random.between(1, most));
  return times;
}

// What division.h says of a division: (M - 1) times the largest load is the first thing to be
// small, then the sum of all passes; nothing where a stage does not fit.
struct Judged {
  std::int64_t pace = 0, passes = 0;
};
std::optional<Judged> judged(const RunCosts& costs, const std::vector<DeviceId>& order,
                             const std::vector<std::size_t>& ends, const DivisionGoal& goal) {
  const CostModel& model = costs.blocks().costs();
  const Cluster& cluster = model.cluster();
  Judged found;
  std::size_t first = 0;
  for (std::size_t stage = 0; stage < order.size(); ++stage) {
    const std::size_t last = ends[stage];
    const DeviceId device = order[stage];
    const std::int64_t shares = std::count(order.begin(), order.end(), device);
    const DeviceClassId device_class = model.class_of(device);
    Bytes running;
    for (std::size_t block = first; block < last; ++block)
      running = std::max(running, costs.running(block));
    const auto behind = static_cast<std::uint32_t>(order.size() - stage);
    const std::uint32_t held = std::min({goal.micro_batches, goal.most_begun, behind});
    Bytes need = costs.step(first, last) + costs.to_end(first, last) * goal.micro_batches +
                 costs.kept(first, last) * held + running;
    Time there, back;
    if (first > 0) {
      need += costs.forward_border(first);  // of the micro-batch that arrives
      if (order[stage - 1] != device) {
        const Bytes forward = costs.forward_border(first), backward = costs.backward_border(first);
        if (forward > Bytes(0))
          there = cluster.link(order[stage - 1], device).transfer_time(forward);
        if (backward > Bytes(0))
          back = cluster.link(device, order[stage - 1]).transfer_time(backward);
      }
    }
    if (need.count() > cluster[device].capacity.count() / shares) return std::nullopt;
    const Time work = *costs.work(first, last, device_class);
    const Time own =
        work + Time(costs.per_step(first, last, device_class).count() / goal.micro_batches);
    found.pace = std::max(found.pace, std::max({own, there, back}).count() * shares);
    found.passes += (work + there + back).count();
    first = last;
  }
  return found;
}

// Calls `look` with the ends of every way to cut so many blocks into so many stages.
template <class Look>
void each_division(std::size_t blocks, std::size_t stages, std::vector<std::size_t>& ends,
                   const Look& look) {
  const std::size_t first = ends.empty() ? 0 : ends.back();
  if (stages == 1) {
    ends.push_back(blocks);
    look(ends);
    ends.pop_back();
    return;
  }
  for (std::size_t end = first + 1; end + stages - 1 <= blocks; ++end) {
    ends.push_back(end);
    each_division(blocks, stages - 1, ends, look);
    ends.pop_back();
  }
}

TEST_CASE("pipeline division: no division is more even, nor as even and shorter, within memory") {
  int divided = 0, refused = 0;
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    CAPTURE(seed);
    Random random(seed);
    const std::size_t devices = 2 + random.below(2);
    const bool slow_links = seed % 5 == 0, updates = seed % 5 == 1;
    const OpGraph graph =
        seed % 3 == 0 ? random_training(seed, 7, false)
                      : training({.forward = drawn_times(random, 7),
                                  .split = seed % 2 == 0,
                                  .kept = Bytes(100),
                                  .weights = Bytes(random.between(0, 60)),
                                  .gradients = Bytes(slow_links ? 16'000 : 100),
                                  .update = drawn_times(random, updates ? 7 : 0, /*most=*/200)});
    const std::int64_t capacity =
        seed % 3 == 0 ? random.between(60, 400) : random.between(300, 1'400);
    const Cluster cluster =
        drawn_cluster(random, devices, Bytes(slow_links || updates ? 100'000 : capacity));
    const CostModel costs(graph, cluster);
    const Blocks blocks(costs, depth_first_sequence(graph), 100);
    const RunCosts runs(blocks);
    std::vector<DeviceId> order(cluster.devices().begin(), cluster.devices().end());
    if (seed % 4 == 1) order = there_and_back(order);
    if (order.size() > runs.size()) continue;
    const DivisionGoal goal{.micro_batches = 4,
                            .most_begun = static_cast<std::uint32_t>(order.size())};
    std::optional<Judged> best;
    std::vector<std::size_t> ends;
    each_division(runs.size(), order.size(), ends, [&](const std::vector<std::size_t>& cut) {
      const std::optional<Judged> other = judged(runs, order, cut, goal);
      if (other.has_value() && (!best.has_value() || std::pair(other->pace, other->passes) <
                                                         std::pair(best->pace, best->passes)))
        best = other;
    });
    const std::optional<Division> found = divide(runs, order, goal);
    REQUIRE(found.has_value() == best.has_value());
    if (!found.has_value()) {
      ++refused;
      continue;
    }
    ++divided;
    for (std::size_t stage = 0; stage < order.size(); ++stage)
      ends.push_back(static_cast<std::size_t>(
          std::upper_bound(found->stage_of.begin(), found->stage_of.end(), StageId(stage)) -
          found->stage_of.begin()));
    const std::optional<Judged> own = judged(runs, order, ends, goal);
    REQUIRE(own.has_value());
    CHECK(own->pace == best->pace);
    CHECK(own->passes == best->passes);
  }
  CHECK(divided > 20);
  CHECK(refused > 5);
}

TEST_CASE("pipeline division: a run keeps what its backward passes read, each tensor once") {
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    CAPTURE(seed);
    const OpGraph graph = random_training(seed, 8, false);
    const Cluster cluster = testing::equal_devices(2, Bytes(1000), Time(0));
    const CostModel costs(graph, cluster);
    const Blocks blocks(costs, depth_first_sequence(graph), 100);
    const RunCosts runs(blocks);
    for (std::size_t first = 0; first <= runs.size(); ++first)
      for (std::size_t last = first; last <= runs.size(); ++last) {
        Bytes kept;
        for (const Wire& wire : blocks.wires()) {
          const bool read = std::ranges::any_of(wire.to, [&](const BlockPart& reader) {
            const std::size_t block = reader.block.index();
            return reader.phase != Phase::kForward && first <= block && block < last;
          });
          if (read && !wire.control && !wire.to_end && wire.from.phase == Phase::kForward)
            kept += wire.bytes;
        }
        REQUIRE(runs.kept(first, last) == kept);
      }
  }
}

TEST_CASE("pipeline rule: a stage has begun no more than it may beyond what it has sent back") {
  int full = 0;  // as many as there may be
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    CAPTURE(seed);
    Random random(seed);
    const OpGraph graph = training({.forward = drawn_times(random, 8), .split = seed % 2 == 0});
    const Cluster cluster = drawn_cluster(random, 3, Bytes(1'000'000));
    const CostModel costs(graph, cluster);
    const Blocks blocks(costs, depth_first_sequence(graph), 100);
    std::vector<DeviceId> order(cluster.devices().begin(), cluster.devices().end());
    if (seed % 4 == 3) order = there_and_back(order);
    const auto division = divide(RunCosts(blocks), order, {.micro_batches = 7, .most_begun = 3});
    REQUIRE(division.has_value());
    const StageGraph stages(blocks, *division, 7);
    Player player(cluster);
    IdVector<DeviceId, Bytes> room(cluster.num_devices(), Bytes(1'000'000));
    for (const Rule& rule : rules_for(stages)) {
      if (rule.forward_first) continue;
      const Played& played = player.by_rule(stages, rule, room);
      REQUIRE(played.finished);
      IdVector<StageId, std::uint32_t> begun(stages.num_stages(), 0), back = begun;
      for (const std::vector<Action>& actions : played.actions)
        for (const Action& action : actions) {
          const StageId stage = stages[action.part].stage;
          const bool has_input = stages[StageGraph::part(stage, Phase::kInput)].present;
          const Phase phase = stages[action.part].phase;
          if (phase == (has_input ? Phase::kInput : Phase::kWeight)) ++back[stage];
          if (phase != Phase::kForward) continue;
          ++begun[stage];
          REQUIRE(begun[stage] - back[stage] <= rule.most_begun[stage]);
          full += begun[stage] - back[stage] == rule.most_begun[stage] ? 1 : 0;
        }
    }
  }
  CHECK(full > 100);
}

struct Fixed {
  std::size_t devices;
  std::uint32_t micro_batches;
  std::int64_t capacity;
  std::int64_t most;  // what a step took when this was written: it may take less
};

// Twelve layers of drawn times that keep 100 bytes each, on devices of drawn speeds.
std::optional<Time> step_of(std::uint64_t seed, const Fixed& fixed) {
  Random random(seed);
  const OpGraph graph = training({.forward = drawn_times(random, 12),
                                  .split = seed % 2 == 0,
                                  .kept = Bytes(100),
                                  .weights = Bytes(50)});
  const Cluster cluster = drawn_cluster(random, fixed.devices, Bytes(fixed.capacity));
  const CostModel costs(graph, cluster);
  const Unrolled unrolled = unroll(graph, fixed.micro_batches);
  const CostModel step(unrolled.graph, cluster);
  const PlaceResult result = place_pipeline({costs, unrolled, step}, {.work = 20'000});
  const auto* placed = std::get_if<PlacedGraph>(&result);
  if (placed == nullptr) return std::nullopt;
  return simulate(step, *placed).schedule.makespan;
}

constexpr Fixed kFixed[] = {
    {2, 4, 2'000, 1'090}, {2, 8, 1'600, 3'552}, {2, 6, 1'600, 2'580}, {3, 4, 1'500, 1'362},
    {3, 6, 1'100, 2'007}, {3, 9, 9'000, 1'188}, {4, 4, 1'200, 824},   {4, 8, 1'100, 2'267},
    {4, 6, 9'000, 982},   {2, 3, 9'000, 842},   {3, 5, 1'200, 2'702}, {4, 7, 1'000, 2'856},
};

TEST_CASE("pipeline: on a fixed set of steps it is no longer, and fits") {
  std::uint64_t seed = 0;
  for (const Fixed& fixed : kFixed) {
    CAPTURE(seed);
    const std::optional<Time> step = step_of(seed++, fixed);
    REQUIRE(step.has_value());
    CHECK(step->count() <= fixed.most);
  }
}

// build/release/baechi_tests --no-skip -tc="pipeline: figures of the fixed set"
TEST_CASE("pipeline: figures of the fixed set" * doctest::skip()) {
  std::uint64_t seed = 0;
  std::string rows;
  for (const Fixed& fixed : kFixed) {
    const std::optional<Time> step = step_of(seed++, fixed);
    rows += std::to_string(step.has_value() ? step->count() : 0) + " ";
  }
  MESSAGE(rows);
}

}  // namespace
}  // namespace baechi::pipeline
