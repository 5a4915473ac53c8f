// SPDX-License-Identifier: Apache-2.0
#include "baechi/place/device_classes.h"

#include <algorithm>

namespace baechi {
namespace {

bool interchangeable(const CostModel& costs, DeviceId p, DeviceId q) {
  if (costs.class_of(p) != costs.class_of(q)) return false;
  const Cluster& cluster = costs.cluster();
  const IdRange<DeviceId> devices = cluster.devices();
  return std::all_of(devices.begin(), devices.end(), [&](DeviceId from) {
    if (from == p || from == q) return true;
    const Link &to_p = cluster.link(from, p), &to_q = cluster.link(from, q);
    return to_p.latency == to_q.latency && to_p.bandwidth == to_q.bandwidth;
  });
}

}  // namespace

std::vector<std::vector<DeviceId>> interchangeable_devices(const CostModel& costs) {
  std::vector<std::vector<DeviceId>> classes;
  for (const DeviceId device : costs.cluster().devices()) {
    const auto home = std::find_if(classes.begin(), classes.end(), [&](const auto& members) {
      return std::all_of(members.begin(), members.end(),
                         [&](DeviceId member) { return interchangeable(costs, member, device); });
    });
    if (home == classes.end()) {
      classes.push_back({device});
    } else {
      home->push_back(device);
    }
  }
  return classes;
}

}  // namespace baechi
