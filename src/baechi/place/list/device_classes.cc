// SPDX-License-Identifier: Apache-2.0
#include "baechi/place/list/device_classes.h"

#include <algorithm>

namespace baechi {
namespace {

bool same_link(const Link& a, const Link& b) {
  return a.latency == b.latency && a.bandwidth == b.bandwidth;
}

bool interchangeable(const CostModel& costs, DeviceId p, DeviceId q) {
  if (costs.class_of(p) != costs.class_of(q)) return false;
  const Cluster& cluster = costs.cluster();
  const IdRange<DeviceId> devices = cluster.devices();
  return std::all_of(devices.begin(), devices.end(), [&](DeviceId from) {
    if (from == p || from == q) return true;
    return same_link(cluster.link(from, p), cluster.link(from, q));
  });
}

}  // namespace

std::vector<std::vector<DeviceId>> interchangeable_devices(const CostModel& costs) {
  std::vector<std::vector<DeviceId>> classes;
  for (const DeviceId device : costs.cluster().devices()) {
    // Interchangeable with every member, which are so among themselves: that holds if it is with
    // the first one, and if the first one sends to it as it sends to the second.
    const auto home = std::find_if(classes.begin(), classes.end(), [&](const auto& members) {
      return interchangeable(costs, members[0], device) &&
             (members.size() == 1 || same_link(costs.cluster().link(members[0], members[1]),
                                               costs.cluster().link(members[0], device)));
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
