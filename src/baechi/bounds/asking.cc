// SPDX-License-Identifier: Apache-2.0
#include "baechi/bounds/asking.h"

#include <algorithm>
#include <cstdint>
#include <optional>

namespace baechi::bounds {

Time asking(const CostModel& costs) {
  const Cluster& cluster = costs.cluster();
  if (!cluster.host_time().has_value()) return Time(0);
  std::int64_t calls = 0;
  std::optional<Time> shortest;
  for (const OpId op : costs.graph().ops()) {
    std::optional<Time> least;
    for (const DeviceId device : cluster.devices())
      if (const std::optional<Time> time = costs.compute_time(op, device))
        least = std::min(least.value_or(*time), *time);
    if (least.value_or(Time(0)) == Time(0)) continue;
    ++calls;
    shortest = std::min(shortest.value_or(*least), *least);
  }
  if (calls == 0) return Time(0);
  const auto hosts = static_cast<std::int64_t>(cluster.num_hosts());
  return cluster.host_time()->call * ((calls + hosts - 1) / hosts) + *shortest;
}

}  // namespace baechi::bounds
