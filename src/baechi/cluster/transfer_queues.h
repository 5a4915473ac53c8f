// SPDX-License-Identifier: Apache-2.0
// The queues that transfers wait in (Paper 3.1.4): of devices, and of shared channels.
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

#include "baechi/base/id.h"
#include "baechi/base/units.h"
#include "baechi/cluster/cluster.h"

namespace baechi {

// First come, first served: transfers are to be requested in the order in which they are served.
// Refers to the cluster, which must outlive it. Copies are as cheap as a list of times.
class TransferQueues {
 public:
  struct Service {
    Time start, end;
  };

  explicit TransferQueues(const Cluster& cluster)
      : cluster_(&cluster),
        receiving_(cluster.communication() == CommunicationMode::kDuplex ? cluster.num_devices()
                                                                         : 0),
        channels_(receiving_ + cluster.num_devices()),
        free_(cluster.communication() == CommunicationMode::kParallel
                  ? 0
                  : channels_ + cluster.num_channels()) {}

  void clear() { free_.assign(free_.size(), Time(0)); }

  // The queues by number. In sequential mode a device receives in the queue that it sends from; in
  // parallel mode there are none, and nothing waits.
  std::size_t size() const { return free_.size(); }
  std::size_t sending(DeviceId device) const { return device.index(); }
  std::size_t receiving(DeviceId device) const { return receiving_ + device.index(); }
  std::size_t channel(ChannelId channel) const { return channels_ + channel.index(); }

  // Calls `visit(queue)` for all that a transfer occupies, from != to, in the order of their kinds.
  template <class Visit>
  void for_each(DeviceId from, DeviceId to, const Visit& visit) const {
    if (free_.empty()) return;
    visit(sending(from));
    visit(receiving(to));
    if (channels_ == free_.size()) return;
    for (const ChannelId shared : cluster_->link(from, to).channels) visit(channel(shared));
  }

  // When all that is in a queue, or in all queues between two devices, has been served.
  Time free(std::size_t queue) const { return free_[queue]; }
  Time free(DeviceId from, DeviceId to) const {
    Time latest;
    for_each(from, to, [&](std::size_t queue) { latest = std::max(latest, free_[queue]); });
    return latest;
  }

  // Occupies every queue between two devices for a transfer, as soon as all are free.
  Service serve(DeviceId from, DeviceId to, Time requested, Time takes) {
    const Time start = std::max(requested, free(from, to));
    const Time end = start + takes;
    for_each(from, to, [&](std::size_t queue) { free_[queue] = end; });
    return {start, end};
  }

 private:
  const Cluster* cluster_;
  std::size_t receiving_;  // where the queues that devices receive in start
  std::size_t channels_;   // where those of channels start
  std::vector<Time> free_;
};

}  // namespace baechi
