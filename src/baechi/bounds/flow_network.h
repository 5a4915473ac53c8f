// SPDX-License-Identifier: Apache-2.0
// A flow from a source to a sink through arcs of limited capacity. Internal to bounds/.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "baechi/bounds/relaxation.h"

namespace baechi::bounds {

// Any flow that it has found is at most what any cut between source and sink lets through, also
// when it stops before it has found the most.
class FlowNetwork {
 public:
  explicit FlowNetwork(std::size_t num_nodes) : first_(num_nodes, kNone) {}

  // An arc of this capacity and one back; the number by which flow() knows it.
  std::size_t add(std::size_t from, std::size_t to, Ns forward, Ns backward = 0);

  // By shortest paths (Dinic), until no path is left or it has looked at `most_visits` arcs.
  Ns push(std::size_t source, std::size_t sink, std::size_t& most_visits);

  // What runs through an arc; negative if it runs back.
  Ns flow(std::size_t arc) const { return capacity_[arc] - arcs_[arc].left; }

 private:
  static constexpr std::uint32_t kNone = 0xffffffff;
  struct Arc {
    std::uint32_t to, next;
    Ns left;
  };
  bool find_levels(std::size_t source, std::size_t sink, std::size_t& most_visits);
  Ns push_along_levels(std::size_t source, std::size_t sink, std::size_t& most_visits);

  std::vector<std::uint32_t> first_;  // arc of each node
  std::vector<Arc> arcs_;             // arc and reverse arc next to each other
  std::vector<Ns> capacity_;          // of each arc
  std::vector<std::uint32_t> level_, current_, queue_, path_;
};

}  // namespace baechi::bounds
