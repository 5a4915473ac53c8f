// SPDX-License-Identifier: Apache-2.0
#include "baechi/optimize/mean_link.h"

#include <algorithm>
#include <cstdint>
#include <vector>

namespace baechi {

MeanLink::MeanLink(const Cluster& cluster) : exists_(cluster.num_devices() > 1) {
  std::int64_t pairs = 0;
  for (const DeviceId from : cluster.devices())
    for (const DeviceId to : cluster.devices()) {
      if (from == to) continue;
      const Link& link = cluster.link(from, to);
      latency_ += link.latency;
      if (link.bandwidth.has_value())
        nanoseconds_per_byte_ += 1e9 / static_cast<double>(link.bandwidth->count());
      ++pairs;
    }
  if (pairs == 0) return;
  latency_ = Time(latency_.count() / pairs);
  nanoseconds_per_byte_ /= static_cast<double>(pairs);
}

Time typical_transfer_time(const OpGraph& graph, const MeanLink& link) {
  std::vector<Bytes> sizes;
  sizes.reserve(graph.num_tensors());
  for (const TensorId tensor : graph.tensors())
    if (!graph.consumers(tensor).empty()) sizes.push_back(graph.size(tensor));
  if (!link.exists() || sizes.empty()) return Time(0);
  const auto median = sizes.begin() + static_cast<std::ptrdiff_t>(sizes.size() / 2);
  std::nth_element(sizes.begin(), median, sizes.end());
  return link.transfer_time(*median);
}

}  // namespace baechi
