// SPDX-License-Identifier: Apache-2.0
#include "baechi/place/list/transfer_times.h"

#include <algorithm>

namespace baechi {
namespace {

constexpr std::size_t kMostTables = 4;

}  // namespace

TransferTimes::TransferTimes(const CostModel& costs)
    : graph_(&costs.graph()), cluster_(&costs.cluster()) {
  for (const Link& link : cluster_->links()) {
    const auto same = std::find_if(links_.begin(), links_.end(), [&](const Link* known) {
      return known->latency == link.latency && known->bandwidth == link.bandwidth;
    });
    speed_of_.push_back(static_cast<std::size_t>(same - links_.begin()));
    if (same == links_.end()) links_.push_back(&link);
  }
  if (links_.size() > kMostTables) return;
  for (const Link* link : links_) {
    IdVector<TensorId, Time>& table = tables_.emplace_back();
    table.reserve(graph_->num_tensors());
    for (const TensorId tensor : graph_->tensors())
      table.push_back(link->transfer_time(graph_->size(tensor)));
  }
}

}  // namespace baechi
