// SPDX-License-Identifier: Apache-2.0
// The random graphs and clusters on which the list schedulers are held against a scan of all pairs.
#pragma once

#include <cstdint>
#include <optional>
#include <utility>

#include "baechi/cluster/cluster.h"
#include "baechi/place/placer.h"
#include "unit/graphs.h"
#include "unit/simulate/random_placement.h"
#include "unit/simulate/small_clusters.h"

namespace baechi::testing {

inline constexpr std::int64_t kAmple = 1'000'000;

struct RandomInstances {
  const char* name;
  RandomDag limits;
  std::int64_t capacity;
};

inline const RandomInstances kRandomInstances[] = {
    {"plain", {.max_ops = 25}, kAmple},
    {"wide", {.min_ops = 20, .max_ops = 40, .edge_chance = 0.06}, kAmple},
    {"long transfers",
     {.max_ops = 25, .edge_chance = 0.15, .max_time = 4, .max_tensor_bytes = 60},
     kAmple},
    {"equal times",
     {.max_ops = 25, .edge_chance = 0.1, .max_time = 1, .max_tensor_bytes = 1},
     kAmple},
    {"groups and pins",
     {.max_ops = 25,
      .edge_chance = 0.15,
      .group_chance = 0.6,
      .backward_chance = 0.3,
      .pin_chance = 0.05,
      .cpu_chance = 0.8},
     kAmple},
    {"tight", {.max_ops = 20, .group_chance = 0.4, .cpu_chance = 0.9}, 90},
    {"tighter",
     {.max_ops = 20,
      .edge_chance = 0.1,
      .group_chance = 0.2,
      .cpu_chance = 0.9,
      .max_permanent_bytes = 2},
     30},
    {"tight, retained",
     {.max_ops = 20, .backward_chance = 0.4, .cpu_chance = 0.9, .memory_mode = MemoryMode::kRetain},
     110},
};

// Classes of several devices; random_cluster's are mostly alone in theirs.
inline Cluster drawn_devices(std::uint64_t seed, Bytes capacity) {
  ClusterSpec spec =
      equal_devices(1 + seed / 2 % 5, capacity, Time(static_cast<std::int64_t>(seed % 4)),
                    Bandwidth(1'000'000'000), static_cast<CommunicationMode>(seed % 3))
          .spec();
  if (seed % 5 == 0) spec.links[0].channels = {"bus"};
  return Cluster(std::move(spec));
}

// Runs of equal devices that are longer than what most of these graphs can use.
inline Cluster many_devices(std::uint64_t seed, Bytes capacity) {
  ClusterSpec spec =
      equal_devices(32 + seed % 5 * 12, capacity, Time(static_cast<std::int64_t>(seed % 4)),
                    Bandwidth(1'000'000'000), static_cast<CommunicationMode>(seed % 3))
          .spec();
  if (seed % 7 == 0) spec.links[0].channels = {"bus"};
  if (seed % 2 == 0) {  // another run behind the first, or within it
    const std::size_t from = seed % 8 == 0 ? 5 : spec.devices.size() / 2;
    for (std::size_t i = from; i < from + spec.devices.size() / 2 && i < spec.devices.size(); ++i) {
      spec.devices[i].speed = Speed(seed % 8 == 2 ? 1'000'000 : 500'000);
      spec.devices[i].host = "west";
    }
    LinkRule near = spec.links.front();
    near.scope = LinkScope::kSameHost;
    near.latency = Time(0);
    if (seed % 8 != 4) spec.links.push_back(near);
  }
  if (seed % 11 == 0) spec.devices.back().kind = "cpu";
  return Cluster(std::move(spec));
}

// For a quarter of the seeds a graph that can use many devices at a time.
inline RandomDag instance_limits(std::uint64_t seed, const RandomInstances& kind) {
  RandomDag limits = kind.limits;
  if (seed % 4 != 3) return limits;
  limits.min_ops = 60;
  limits.max_ops = 110;
  limits.edge_chance = 0.01;
  return limits;
}

inline Cluster instance_cluster(std::uint64_t seed, const RandomInstances& kind) {
  return seed % 2 == 0 ? random_cluster(seed * 7 + 1, Bytes(kind.capacity))
                       : drawn_devices(seed, Bytes(kind.capacity));
}

inline PlaceOptions instance_options(std::uint64_t seed) {
  PlaceOptions options;
  if (seed % 3 == 2) options.memory = MemoryPolicy::kReserve;
  if (seed % 7 == 3) options.call_suppliers = false;
  if (seed % 4 == 1) options.headroom = 0.2;
  return options;
}

// For a sixth of the seeds; absent too when a colocation group has no device.
inline std::optional<Placement> instance_home(std::uint64_t seed, const CostModel& costs) {
  Random random(seed);
  return seed % 6 == 4 ? random_placement(costs, random) : std::nullopt;
}

}  // namespace baechi::testing
