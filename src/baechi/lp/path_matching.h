// SPDX-License-Identifier: Apache-2.0
// A matching on a PathGraph, what the edges pay under it, and the path lengths that follow.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "baechi/lp/matching_path_problem.h"

namespace baechi::lp {

class PathMatching {
 public:
  explicit PathMatching(const PathGraph& graph)
      : graph_(&graph),
        pay_(graph.cost),
        out_edge_(graph.num_nodes()),
        in_edge_(graph.num_nodes()) {}

  // What each edge pays: its cost, or 0 when matched.
  const std::vector<std::int64_t>& pay() const { return pay_; }
  std::optional<std::uint32_t> out_edge(std::uint32_t node) const { return out_edge_[node]; }
  std::optional<std::uint32_t> in_edge(std::uint32_t node) const { return in_edge_[node]; }

  bool contains(std::uint32_t edge) const { return out_edge_[graph_->from[edge]] == edge; }
  // Edges without a cost have nothing to gain and stay out.
  bool can_add(std::uint32_t edge) const {
    return graph_->cost[edge] > 0 && !out_edge_[graph_->from[edge]] && !in_edge_[graph_->to[edge]];
  }
  void add(std::uint32_t edge) {
    pay_[edge] = 0;
    out_edge_[graph_->from[edge]] = edge;
    in_edge_[graph_->to[edge]] = edge;
  }
  void remove(std::uint32_t edge) {
    pay_[edge] = graph_->cost[edge];
    out_edge_[graph_->from[edge]].reset();
    in_edge_[graph_->to[edge]].reset();
  }
  void clear() {
    pay_ = graph_->cost;
    out_edge_.assign(out_edge_.size(), std::nullopt);
    in_edge_.assign(in_edge_.size(), std::nullopt);
  }

 private:
  const PathGraph* graph_;
  std::vector<std::int64_t> pay_;
  std::vector<std::optional<std::uint32_t>> out_edge_, in_edge_;
};

struct PathLengths {
  std::vector<std::int64_t> head;  // longest path that ends where the node starts
  std::vector<std::int64_t> tail;  // longest path from the node's start to the end
  std::int64_t longest = 0;
};

// head, tail and longest when edge e pays pay[e]. O(nodes + edges), reusing `lengths`' memory.
void measure_paths(const PathGraph& graph, const std::vector<std::int64_t>& pay,
                   PathLengths& lengths);

// The same under the best matching each node could wish for alone: lower bounds for any matching.
void measure_wishful_paths(const PathGraph& graph, PathLengths& lengths);

// Steepest descent: matches an edge of a longest path in place of the edges that block it, as long
// as the pair (longest path, number of nodes on one) falls and `work` visited edges last.
void swap_on_longest_path(const PathGraph& graph, PathMatching& matching, std::int64_t work);

}  // namespace baechi::lp
