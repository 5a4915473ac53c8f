// SPDX-License-Identifier: Apache-2.0
// What every tensor takes over every link, without dividing by the bandwidth each time.
#pragma once

#include <cstddef>
#include <vector>

#include "baechi/base/id.h"
#include "baechi/base/units.h"
#include "baechi/cost/cost_model.h"

namespace baechi {

// Immutable; refers to the costs, which must outlive it. Clusters with a few distinct links get a
// table per link (8 bytes per tensor and link), others compute on demand.
class TransferTimes {
 public:
  explicit TransferTimes(const CostModel& costs);

  // Requires from != to.
  Time operator()(TensorId tensor, DeviceId from, DeviceId to) const {
    const std::size_t speed = speed_of_[cluster_->link_index(from, to)];
    return tables_.empty() ? links_[speed]->transfer_time(graph_->size(tensor))
                           : tables_[speed][tensor];
  }
  // Transfers between all pairs take the same time.
  bool uniform() const { return links_.size() <= 1; }

 private:
  const OpGraph* graph_;
  const Cluster* cluster_;
  std::vector<const Link*> links_;                // one for each latency and bandwidth
  std::vector<std::size_t> speed_of_;             // into links_, by Cluster::link_index
  std::vector<IdVector<TensorId, Time>> tables_;  // by link, unless there are too many
};

}  // namespace baechi
