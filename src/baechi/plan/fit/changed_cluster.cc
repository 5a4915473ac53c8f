// SPDX-License-Identifier: Apache-2.0
#include "baechi/plan/fit/changed_cluster.h"

#include <algorithm>
#include <string>
#include <utility>

#include "baechi/base/error.h"

namespace baechi {

std::optional<Cluster> changed_cluster(const Cluster& cluster, std::optional<Bytes> capacity,
                                       std::size_t count) {
  ClusterSpec spec = cluster.spec();
  const Device largest =
      *std::max_element(spec.devices.begin(), spec.devices.end(),
                        [](const Device& a, const Device& b) { return a.capacity < b.capacity; });
  for (std::size_t i = spec.devices.size(); i < count; ++i) {
    Device device = largest;
    device.name = largest.name + " copy " + std::to_string(i);
    spec.devices.push_back(std::move(device));
  }
  if (capacity.has_value())
    for (Device& device : spec.devices) device.capacity = *capacity;
  try {
    return Cluster(std::move(spec));
  } catch (const InputError&) {
    return std::nullopt;
  }
}

}  // namespace baechi
