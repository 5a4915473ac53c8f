// SPDX-License-Identifier: Apache-2.0
// Clusters of equal devices, some on which a tensor's bytes are the nanoseconds that it takes.
#pragma once

#include <cstddef>
#include <optional>

#include "baechi/base/id.h"
#include "baechi/base/units.h"
#include "baechi/cluster/cluster.h"

namespace baechi::testing {

inline constexpr DeviceId kGpu0{0}, kGpu1{1}, kGpu2{2}, kGpu3{3};

// Equal devices with equal links.
inline Cluster equal_devices(std::size_t count, Bytes capacity, Time latency = Time(0),
                             std::optional<Bandwidth> bandwidth = {},
                             CommunicationMode mode = CommunicationMode::kSequential) {
  return Cluster(uniform_cluster({count, capacity, latency, bandwidth, mode}));
}

// Links that move one byte per nanosecond, after `latency`.
inline Cluster byte_per_ns(std::size_t count, CommunicationMode mode, Time latency = Time(0),
                           Bytes capacity = Bytes(1000)) {
  return equal_devices(count, capacity, latency, Bandwidth(1'000'000'000), mode);
}

// One gpu and host:0, which keeps up to `store`; a byte per nanosecond, both ways at once.
inline Cluster gpu_and_host(Bytes capacity, Bytes store) {
  ClusterSpec spec = byte_per_ns(2, CommunicationMode::kDuplex, Time(0), capacity).spec();
  spec.devices[1].name = "host:0";
  spec.devices[1].kind = "host";
  spec.devices[1].capacity = store;
  return Cluster(spec);
}

}  // namespace baechi::testing
