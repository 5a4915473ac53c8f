// SPDX-License-Identifier: Apache-2.0
#include "baechi/place/pipeline/device_orders.h"

#include <algorithm>

#include "baechi/base/units.h"
#include "baechi/graph/unroll.h"

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

// Those that compute for a micro-batch, or all if none does: not a host that runs updates alone.
DeviceSequence computing(const CostModel& costs, std::size_t most) {
  const OpGraph& graph = costs.graph();
  const IdVector<OpId, bool> once = once_per_step(graph);
  DeviceSequence found, all;
  for (const DeviceId device : costs.cluster().devices()) {
    const bool computes = std::ranges::any_of(graph.ops(), [&](OpId op) {
      return !once[op] && costs.compute_time(op, device).value_or(Time(0)) > Time(0);
    });
    if (computes && found.size() < most) found.push_back(device);
    if (all.size() < most) all.push_back(device);
  }
  return found.empty() ? all : found;
}

}  // namespace

std::vector<DeviceSequence> device_orders(const CostModel& costs, std::size_t most) {
  constexpr std::size_t kMostStages = 64;
  const Cluster& cluster = costs.cluster();
  const DeviceSequence devices = computing(costs, kMostStages);
  DeviceSequence types;  // the first device of its kind, for each
  for (const DeviceId device : devices) {
    const auto first = std::find_if(types.begin(), types.end(),
                                    [&](DeviceId other) { return alike(costs, other, device); });
    types.push_back(first == types.end() ? device : *first);
  }
  // From types to devices: each type's in the order of their ids.
  const auto named = [&](const DeviceSequence& of) {
    std::vector<bool> used(devices.size(), false);
    DeviceSequence order;
    for (const DeviceId type : of)
      for (std::size_t i = 0; i < devices.size(); ++i)
        if (!used[i] && types[i] == type) {
          used[i] = true;
          order.push_back(devices[i]);
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
  DeviceSequence order = devices;
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
