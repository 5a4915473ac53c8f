// SPDX-License-Identifier: Apache-2.0
#include "unit/regimes.h"

#include <algorithm>
#include <utility>

#include "baechi/base/random.h"
#include "unit/graphs.h"

namespace baechi::testing {
namespace {

// c is about 10 + bytes on the random clusters' slowest links, up to 40 + 5 bytes.
const Regime kRegimes[] = {
    {.name = "balanced"},
    {.name = "equal devices", .equal_devices = true},
    {.name = "communication far above computation", .max_bytes = 400},
    {.name = "computation far above communication", .max_time = 1000, .max_bytes = 1},
    {.name = "equal devices, far above, tight",
     .max_bytes = 200,
     .equal_devices = true,
     .tight = true},
    {.name = "tight memory", .tight = true},
    {.name = "unequal kinds", .cpu_chance = 0.8},
    {.name = "unequal kinds, tight", .cpu_chance = 0.8, .tight = true},
    {.name = "groups", .group_chance = 0.6},
    {.name = "pins", .pin_chance = 0.4, .cpu_chance = 0.5},
    {.name = "groups and pins, tight", .group_chance = 0.4, .pin_chance = 0.2, .tight = true},
    {.name = "sparse", .edge_chance = 0.1, .equal_devices = true},
    {.name = "dense", .edge_chance = 0.8, .equal_devices = true},
    {.name = "no time at all", .max_time = 0},
    {.name = "variables", .variable_chance = 0.4},
    {.name = "variables, far above, tight",
     .max_bytes = 100,
     .edge_chance = 0.5,
     .tight = true,
     .variable_chance = 0.4},
    {.name = "variables, unequal kinds, written, tight",
     .group_chance = 0.2,
     .cpu_chance = 0.8,
     .tight = true,
     .variable_chance = 0.4,
     .write_chance = 0.4},
    {.name = "times of zero and one", .max_time = 1, .equal_devices = true},
    {.name = "unequal kinds, times of zero and one", .max_time = 1, .cpu_chance = 0.8},
};

}  // namespace

std::span<const Regime> regimes() { return kRegimes; }

Instance instance_of(const Regime& regime, std::uint64_t seed) {
  Random random(seed ^ 0xb0d5);
  RandomDag limits;
  limits.min_ops = 2;
  limits.max_ops = 6;
  limits.max_time = regime.max_time;
  limits.max_tensor_bytes = regime.max_bytes;
  limits.edge_chance = regime.edge_chance;
  limits.group_chance = regime.group_chance;
  limits.pin_chance = regime.pin_chance;
  limits.cpu_chance = regime.cpu_chance;
  limits.backward_chance = 0.3;
  limits.variable_chance = regime.variable_chance;
  limits.write_chance = regime.write_chance;
  if (regime.tight) limits.max_permanent_bytes = 40;
  limits.memory_mode = random.chance(0.3) ? MemoryMode::kRetain : MemoryMode::kDataflow;
  OpGraph graph = random_dag(seed, limits);
  Bytes capacity(1'000'000);
  if (regime.tight) {
    std::int64_t most = 0, all = 0;
    for (const OpId op : graph.ops()) {
      const std::int64_t need =
          (graph[op].permanent + graph[op].temporary).count() + graph.output_bytes(op).count();
      all += need;
      most = std::max(most, need);
    }
    // At least 2, since random_cluster() may halve it.
    capacity = Bytes(std::max<std::int64_t>(2, random.between(std::max(most, all / 3), all + 2)));
  }
  ClusterSpec spec = random_cluster(seed, capacity).spec();
  if (spec.devices.size() > 3) spec.devices.resize(3);
  if (regime.equal_devices || regime.tight)
    for (Device& device : spec.devices) device.capacity = capacity;
  if (regime.equal_devices) {
    for (Device& device : spec.devices) {
      device.kind = "gpu";
      device.speed = kFullSpeed;
    }
    spec.links.erase(spec.links.begin() + 1, spec.links.end());
  }
  return {std::move(graph), Cluster(std::move(spec))};
}

}  // namespace baechi::testing
