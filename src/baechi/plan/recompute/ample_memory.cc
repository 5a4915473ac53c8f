// SPDX-License-Identifier: Apache-2.0
#include "baechi/plan/recompute/ample_memory.h"

#include <algorithm>
#include <cstdint>
#include <utility>

namespace baechi {

Cluster roomier(const CostModel& costs, std::optional<double> times) {
  ClusterSpec spec = costs.cluster().spec();
  const auto count = static_cast<std::int64_t>(spec.devices.size());
  Bytes room(1);
  for (const OpId op : costs.graph().ops())
    room += costs.graph()[op].permanent + costs.graph()[op].temporary +
            costs.graph().output_bytes(op) * (count + 1);
  for (Device& device : spec.devices) {
    const auto more = static_cast<double>(device.capacity.count()) * times.value_or(1);
    device.capacity = times.has_value() && more < static_cast<double>(room.count())
                          ? std::max(Bytes(1), Bytes(static_cast<std::int64_t>(more)))
                          : std::max(device.capacity, room);
  }
  return Cluster(std::move(spec));
}

}  // namespace baechi
