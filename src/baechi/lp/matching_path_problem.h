// SPDX-License-Identifier: Apache-2.0
// The problem behind favorite children (Paper 2.4): shorten the longest path of a DAG by a
// matching.
//
// A path pays length[i] for each node and cost[e] for each edge, except the edges of a matching F,
// in which every node is the tail of at most one edge (its favorite child) and the head of at most
// one (its favorite parent). Minimise w(F), the length of the longest path. With x_e = 1 for an
// edge that pays and 0 for one in F, the paper's linear relaxation is
//
//   min w   s_j >= s_i + length_i + cost_ij x_ij,   w >= s_i + length_i,   0 <= x <= 1,
//           sum over out-edges of (1 - x) <= 1,     sum over in-edges of (1 - x) <= 1.
//
// This folder sees nodes, edges and integers; what they stand for is the caller's business.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace baechi::lp {

struct PathEdge {
  std::uint32_t from, to;
  std::int64_t cost;  // >= 0: what the edge pays unless it is in the matching
};

// A DAG as the sweeps want it: nodes are positions in a topological order, edges are sorted by
// tail, so one walk over the arrays is a longest-path pass.
struct PathGraph {
  std::size_t num_nodes() const { return length.size(); }
  std::size_t num_edges() const { return to.size(); }

  std::vector<std::int64_t> length;      // by node
  std::vector<std::uint32_t> out_begin;  // num_nodes() + 1 row starts into the edges
  std::vector<std::uint32_t> from, to;   // by edge; from < to
  std::vector<std::int64_t> cost;        // by edge
  std::vector<std::uint32_t> in_begin;   // num_nodes() + 1 row starts into in_edge
  std::vector<std::uint32_t> in_edge;    // the edges sorted by head

  void index_in_edges();  // fills in_begin and in_edge from `to`
};

// Immutable. O(nodes + edges) to build.
class MatchingPathProblem {
 public:
  // `lengths` >= 0, one per node in any order; at most one edge per ordered pair. InternalError if
  // the edges form a cycle or a number is negative; InputError if a path would not fit 61 bits.
  MatchingPathProblem(std::span<const std::int64_t> lengths, std::span<const PathEdge> edges);

  std::size_t num_nodes() const { return graph_.num_nodes(); }
  std::size_t num_edges() const { return graph_.num_edges(); }
  const PathGraph& graph() const { return graph_; }

  // The constructor's numbers of the graph's nodes and edges.
  const std::vector<std::uint32_t>& caller_node() const { return caller_node_; }
  const std::vector<std::uint32_t>& caller_edge() const { return caller_edge_; }

  // w of the empty matching: the longest path when every edge pays.
  std::int64_t unmatched_path() const { return unmatched_path_; }

 private:
  PathGraph graph_;
  std::vector<std::uint32_t> caller_node_, caller_edge_;
  std::int64_t unmatched_path_ = 0;
};

}  // namespace baechi::lp
