// SPDX-License-Identifier: Apache-2.0
// One link that stands for all of a cluster's, for decisions taken before anything has a device;
// beyond the paper.
#pragma once

#include "baechi/base/units.h"
#include "baechi/cluster/cluster.h"
#include "baechi/cost/cost_model.h"

namespace baechi {

class MeanLink {
 public:
  // The means of latency and of time per byte over all ordered pairs of devices.
  explicit MeanLink(const Cluster& cluster);

  // False on a cluster of one device.
  bool exists() const { return exists_; }
  Time transfer_time(Bytes size) const {
    return latency_ + Time(static_cast<std::int64_t>(static_cast<double>(size.count()) *
                                                     nanoseconds_per_byte_));
  }

 private:
  bool exists_;
  Time latency_;
  double nanoseconds_per_byte_ = 0.0;
};

// The time to send the median of the graph's tensors that have consumers; zero when there is
// nothing to send or nowhere to send it.
Time typical_transfer_time(const OpGraph& graph, const MeanLink& link);

}  // namespace baechi
