// SPDX-License-Identifier: Apache-2.0
#include "baechi/bounds/flow_network.h"

#include <algorithm>

namespace baechi::bounds {

std::size_t FlowNetwork::add(std::size_t from, std::size_t to, Ns forward, Ns backward) {
  const std::size_t arc = arcs_.size();
  arcs_.push_back({static_cast<std::uint32_t>(to), first_[from], forward});
  first_[from] = static_cast<std::uint32_t>(arc);
  arcs_.push_back({static_cast<std::uint32_t>(from), first_[to], backward});
  first_[to] = static_cast<std::uint32_t>(arc + 1);
  capacity_.push_back(forward);
  capacity_.push_back(backward);
  return arc;
}

Ns FlowNetwork::push(std::size_t source, std::size_t sink, std::size_t& most_visits) {
  Ns flow = 0;
  while (find_levels(source, sink, most_visits))
    flow += push_along_levels(source, sink, most_visits);
  return flow;
}

// How many arcs each node is from the source, up to the sink's level.
bool FlowNetwork::find_levels(std::size_t source, std::size_t sink, std::size_t& most_visits) {
  level_.assign(first_.size(), kNone);
  queue_.assign(1, static_cast<std::uint32_t>(source));
  level_[source] = 0;
  for (std::size_t i = 0; i < queue_.size() && level_[sink] == kNone; ++i)
    for (std::uint32_t arc = first_[queue_[i]]; arc != kNone; arc = arcs_[arc].next) {
      if (most_visits == 0) return false;
      --most_visits;
      if (arcs_[arc].left == 0 || level_[arcs_[arc].to] != kNone) continue;
      level_[arcs_[arc].to] = level_[queue_[i]] + 1;
      queue_.push_back(arcs_[arc].to);
    }
  return level_[sink] != kNone;
}

Ns FlowNetwork::push_along_levels(std::size_t source, std::size_t sink, std::size_t& most_visits) {
  current_ = first_;
  path_.clear();
  Ns flow = 0;
  std::size_t node = source;
  while (most_visits > 0) {
    if (node == sink) {
      Ns pushed = kNever;
      for (const std::uint32_t arc : path_) pushed = std::min(pushed, arcs_[arc].left);
      flow += pushed;
      for (const std::uint32_t arc : path_) {
        arcs_[arc].left -= pushed;
        arcs_[arc ^ 1].left += pushed;
      }
      path_.clear();
      node = source;
      continue;
    }
    std::uint32_t& arc = current_[node];
    while (arc != kNone && (arcs_[arc].left == 0 || level_[arcs_[arc].to] != level_[node] + 1)) {
      arc = arcs_[arc].next;
      if (most_visits > 0) --most_visits;
    }
    if (arc != kNone) {
      path_.push_back(arc);
      node = arcs_[arc].to;
      if (most_visits > 0) --most_visits;
      continue;
    }
    if (path_.empty()) return flow;  // the source leads nowhere any more
    node = arcs_[path_.back() ^ 1].to;
    path_.pop_back();
    current_[node] = arcs_[current_[node]].next;
  }
  return flow;
}

}  // namespace baechi::bounds
