// SPDX-License-Identifier: Apache-2.0
// Who holds a device's memory, against the simulator's own account of how much it holds.
#include "baechi/simulate/held_memory.h"

#include <doctest/doctest.h>

#include <optional>

#include "baechi/base/random.h"
#include "baechi/simulate/execution_simulator.h"
#include "unit/graphs.h"
#include "unit/simulate/random_placement.h"

namespace baechi {
namespace {

testing::RandomDag limits_of(Random& random) {
  testing::RandomDag limits;
  limits.max_ops = 3 + random.below(20);
  limits.edge_chance = random.unit() * 0.5;
  limits.backward_chance = 0.3;
  limits.cpu_chance = 0.9;
  limits.max_time = random.chance(0.5) ? 3 : 20;
  limits.memory_mode = random.chance(0.5) ? MemoryMode::kRetain : MemoryMode::kDataflow;
  return limits;
}

Bytes sum_of(const std::vector<HeldMemory>& held) {
  Bytes sum;
  for (const HeldMemory& part : held) sum += part.bytes;
  return sum;
}

// Between two entries of the curve lies what the first of them says.
TEST_CASE(
    "held memory: it adds up to the peak, and to what the memory curve says between its entries") {
  std::size_t checked = 0;
  for (std::uint64_t seed = 0; seed < 3000; ++seed) {
    CAPTURE(seed);
    Random random(seed ^ 0x3e3);
    const OpGraph graph = testing::random_dag(seed, limits_of(random));
    const Cluster cluster = testing::random_cluster(seed);
    const CostModel costs(graph, cluster);
    const std::optional<Placement> placement = testing::random_placement(costs, random);
    if (!placement.has_value()) continue;
    const Trace trace = simulate(costs, {*placement, std::nullopt}, {.record_memory = true});

    IdVector<DeviceId, Time> moments;
    for (const DeviceTrace& device : trace.devices) moments.push_back(device.peak_at);
    const auto at_peaks = held_memory(graph, trace.schedule, moments);
    for (const DeviceId device : cluster.devices())
      REQUIRE(sum_of(at_peaks[device]) == trace.devices[device].peak);

    for (const DeviceId device : cluster.devices()) {
      const std::vector<MemoryStep>& curve = trace.devices[device].memory;
      for (std::size_t i = 0; i + 1 < curve.size(); ++i) {
        const Time between = curve[i].at + Time(1);
        if (between >= curve[i + 1].at) continue;
        const auto held = held_memory(graph, trace.schedule,
                                      IdVector<DeviceId, Time>(cluster.num_devices(), between));
        REQUIRE(sum_of(held[device]) == curve[i].bytes);
        ++checked;
      }
    }
  }
  CHECK(checked > 10'000);
}

}  // namespace
}  // namespace baechi
