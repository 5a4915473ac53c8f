// SPDX-License-Identifier: Apache-2.0
#include "baechi/simulate/trace.h"

#include <algorithm>

namespace baechi {

std::optional<Overflow> find_overflow(const Trace& trace, const Cluster& cluster) {
  std::optional<Overflow> first;
  for (const DeviceId device : trace.devices.keys()) {
    const DeviceTrace& seen = trace.devices[device];
    if (!seen.overflow_at.has_value()) continue;
    if (first.has_value() && first->at <= *seen.overflow_at) continue;
    first = {device, seen.peak - cluster[device].capacity, *seen.overflow_at};
  }
  return first;
}

Bytes total_excess(const Trace& trace, const Cluster& cluster) {
  Bytes excess;
  for (const DeviceId device : trace.devices.keys())
    excess += std::max(Bytes(0), trace.devices[device].peak - cluster[device].capacity);
  return excess;
}

}  // namespace baechi
