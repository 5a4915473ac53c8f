// SPDX-License-Identifier: Apache-2.0
#include "baechi/place/list/device_classes.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <vector>

#include "baechi/base/random.h"
#include "unit/graphs.h"
#include "unit/simulate/small_clusters.h"

namespace baechi {
namespace {

// Up to seven devices of one or two speeds, and links of two latencies, most of them alike.
Cluster nearly_uniform(std::uint64_t seed) {
  Random random(seed);
  ClusterSpec spec = testing::equal_devices(2 + random.below(6), Bytes(100), Time(2)).spec();
  for (Device& device : spec.devices)
    if (random.chance(0.2)) device.speed = Speed(500'000);
  for (const Device& from : spec.devices)
    for (const Device& to : spec.devices) {
      if (from.name == to.name || !random.chance(0.1)) continue;
      LinkRule rule = spec.links.front();
      rule.scope = LinkScope::kPair;
      rule.from = from.name;
      rule.to = to.name;
      rule.both_ways = random.chance(0.5);
      rule.latency += Time(1);
      spec.links.push_back(rule);
    }
  return Cluster(std::move(spec));
}

bool alike(const CostModel& costs, DeviceId p, DeviceId q) {
  const Cluster& cluster = costs.cluster();
  for (const DeviceId from : cluster.devices())
    if (from != p && from != q && cluster.link(from, p).latency != cluster.link(from, q).latency)
      return false;
  return costs.class_of(p) == costs.class_of(q);
}

TEST_CASE("device classes: each device joins the first class it is interchangeable with all of") {
  std::map<std::size_t, int> sizes;
  for (std::uint64_t seed = 0; seed < 500; ++seed) {
    CAPTURE(seed);
    const OpGraph graph = testing::fork_join(2, Time(10), Bytes(4));
    const Cluster cluster = nearly_uniform(seed);
    const CostModel costs(graph, cluster);
    std::vector<std::vector<DeviceId>> expected;
    for (const DeviceId device : cluster.devices()) {
      const auto home = std::find_if(expected.begin(), expected.end(), [&](const auto& members) {
        return std::all_of(members.begin(), members.end(),
                           [&](DeviceId member) { return alike(costs, member, device); });
      });
      if (home == expected.end())
        expected.push_back({device});
      else
        home->push_back(device);
    }
    CHECK(interchangeable_devices(costs) == expected);
    for (const auto& members : expected) ++sizes[members.size()];
  }
  for (std::size_t size = 1; size <= 4; ++size) CHECK(sizes[size] > 20);
}

}  // namespace
}  // namespace baechi
