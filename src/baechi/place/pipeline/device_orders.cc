// SPDX-License-Identifier: Apache-2.0
#include "baechi/place/pipeline/device_orders.h"

#include <algorithm>

#include "baechi/base/units.h"

namespace baechi::pipeline {
namespace {

bool alike(const CostModel& costs, DeviceId a, DeviceId b) {
  const Cluster& cluster = costs.cluster();
  if (costs.has_pins() || costs.class_of(a) != costs.class_of(b) ||
      cluster[a].capacity != cluster[b].capacity)
    return false;
  const auto same = [](const Link& one, const Link& other) {
    return one.latency == other.latency && one.bandwidth == other.bandwidth;
  };
  if (!same(cluster.link(a, b), cluster.link(b, a))) return false;
  return std::all_of(cluster.devices().begin(), cluster.devices().end(), [&](DeviceId c) {
    return c == a || c == b ||
           (same(cluster.link(a, c), cluster.link(b, c)) &&
            same(cluster.link(c, a), cluster.link(c, b)));
  });
}

// What the device takes for all that it can run: less is faster.
Time time_for_all(const CostModel& costs, DeviceId device) {
  Time sum;
  for (const OpId op : costs.graph().ops())
    if (const auto time = costs.compute_time(op, device)) sum += *time;
  return sum;
}

}  // namespace

std::vector<DeviceSequence> device_orders(const CostModel& costs, std::size_t most) {
  constexpr std::size_t kMostStages = 64;
  const Cluster& cluster = costs.cluster();
  const std::size_t count = std::min(kMostStages, cluster.num_devices());
  DeviceSequence types;  // the first device of its kind, for each
  for (std::size_t i = 0; i < count; ++i) {
    const auto first = std::find_if(types.begin(), types.end(), [&](DeviceId other) {
      return alike(costs, other, DeviceId(i));
    });
    types.push_back(first == types.end() ? DeviceId(i) : *first);
  }
  // From types to devices: each type's in the order of their ids.
  const auto named = [&](const DeviceSequence& of) {
    std::vector<bool> used(count, false);
    DeviceSequence order;
    for (const DeviceId type : of)
      for (std::size_t i = 0; i < count; ++i)
        if (!used[i] && types[i] == type) {
          used[i] = true;
          order.push_back(DeviceId(i));
          break;
        }
    return order;
  };

  std::vector<DeviceSequence> orders;
  DeviceSequence next = types;
  std::sort(next.begin(), next.end());
  do {
    orders.push_back(named(next));
  } while (orders.size() <= most && std::next_permutation(next.begin(), next.end()));
  if (orders.size() <= most) return orders;

  orders.clear();
  DeviceSequence order;
  for (std::size_t i = 0; i < count; ++i) order.push_back(DeviceId(i));
  orders.push_back(order);
  const auto by = [&](auto&& key) {
    std::stable_sort(order.begin(), order.end(),
                     [&](DeviceId a, DeviceId b) { return key(a) < key(b); });
    orders.push_back(order);
    std::reverse(order.begin(), order.end());
    orders.push_back(order);
  };
  IdVector<DeviceId, Time> time;
  for (const DeviceId device : cluster.devices()) time.push_back(time_for_all(costs, device));
  by([&](DeviceId device) { return time[device]; });
  by([&](DeviceId device) { return cluster[device].capacity; });
  std::sort(orders.begin(), orders.end());
  orders.erase(std::unique(orders.begin(), orders.end()), orders.end());
  return orders;
}

}  // namespace baechi::pipeline
