// SPDX-License-Identifier: Apache-2.0
// The queues that transfers wait in (Paper 3.1.4): of devices, and of shared channels.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "baechi/base/id.h"
#include "baechi/base/units.h"
#include "baechi/cluster/cluster.h"

namespace baechi::simulation {

// Link::transfer_time() with the division by the bandwidth turned into a multiplication.
class LinkClock {
 public:
  explicit LinkClock(const Link& link);
  Time transfer_time(Bytes size) const;

 private:
  const Link* link_;
  std::uint64_t bandwidth_;  // 0: take the slow way
  std::uint64_t inverse_;    // floor(2^64 / bandwidth)
};

// First come, first served: transfers are to be requested in the order in which they are served.
class TransferQueues {
 public:
  struct Service {
    Time start, end;
  };

  explicit TransferQueues(const Cluster& cluster);
  void clear();
  // Occupies every queue and channel between two devices, from != to, for a transfer of `size`
  // bytes, as soon as all are free.
  Service serve(DeviceId from, DeviceId to, Bytes size, Time requested);

 private:
  struct Path {
    LinkClock clock;
    std::span<const ChannelId> channels;
  };

  std::size_t num_devices_;
  CommunicationMode mode_;
  std::vector<Path> paths_;
  std::vector<std::uint32_t> path_of_;           // row-major by (from, to)
  IdVector<DeviceId, Time> out_free_, in_free_;  // sequential: the one queue is out_free_
  IdVector<ChannelId, Time> channel_free_;
};

}  // namespace baechi::simulation
