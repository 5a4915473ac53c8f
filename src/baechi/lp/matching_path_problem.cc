// SPDX-License-Identifier: Apache-2.0
// The problem behind favorite children (Paper 2.4): a topological renumbering into a CSR.
#include "baechi/lp/matching_path_problem.h"

#include <algorithm>
#include <numeric>

#include "baechi/base/assert.h"
#include "baechi/base/error.h"
#include "baechi/base/overflow.h"

namespace baechi::lp {
namespace {

// Row starts of a counting sort of `keys` into `rows` rows.
template <class Key>
std::vector<std::uint32_t> row_starts(std::size_t rows, std::size_t items, Key key) {
  std::vector<std::uint32_t> begin(rows + 1, 0);
  for (std::size_t i = 0; i < items; ++i) ++begin[key(i) + 1];
  std::partial_sum(begin.begin(), begin.end(), begin.begin());
  return begin;
}

// The caller's own numbering where it is topological already; else depth first, which keeps chains
// together and so the arrays of a sweep close.
std::vector<std::uint32_t> topological_order(std::size_t nodes, std::span<const PathEdge> edges) {
  std::vector<std::uint32_t> order(nodes);
  std::iota(order.begin(), order.end(), 0U);
  if (std::ranges::all_of(edges, [](const PathEdge& e) { return e.from < e.to; })) return order;

  const std::vector<std::uint32_t> begin =
      row_starts(nodes, edges.size(), [&](std::size_t e) { return edges[e].from; });
  std::vector<std::uint32_t> target(edges.size()), next(begin.begin(), begin.end() - 1);
  std::vector<std::uint32_t> unseen_parents(nodes, 0);
  for (const PathEdge& edge : edges) {
    target[next[edge.from]++] = edge.to;
    ++unseen_parents[edge.to];
  }
  order.clear();
  std::vector<std::uint32_t> ready;
  for (std::size_t node = nodes; node-- > 0;)
    if (unseen_parents[node] == 0) ready.push_back(static_cast<std::uint32_t>(node));
  while (!ready.empty()) {
    const std::uint32_t node = ready.back();
    ready.pop_back();
    order.push_back(node);
    for (std::size_t at = begin[node + 1]; at-- > begin[node];)
      if (--unseen_parents[target[at]] == 0) ready.push_back(target[at]);
  }
  BAECHI_ASSERT(order.size() == nodes, "the edges form a cycle");
  return order;
}

// Every sum that a longest-path pass can form stays below this, with room for one more addition.
constexpr std::int64_t kLargestPath = std::int64_t{1} << 61;

std::int64_t checked_longest_path(const PathGraph& graph) {
  std::vector<std::int64_t> head(graph.num_nodes(), 0);
  std::int64_t longest = 0;
  const auto checked_sum = [](std::int64_t a, std::int64_t b) {
    std::int64_t sum = 0;
    if (add_overflows(a, b, sum) || sum > kLargestPath)
      throw InputError("times: the longest path exceeds 2^61 ns");
    return sum;
  };
  for (std::size_t node = 0; node < graph.num_nodes(); ++node) {
    const std::int64_t end = checked_sum(head[node], graph.length[node]);
    longest = std::max(longest, end);
    for (std::size_t e = graph.out_begin[node]; e < graph.out_begin[node + 1]; ++e)
      head[graph.to[e]] = std::max(head[graph.to[e]], checked_sum(end, graph.cost[e]));
  }
  return longest;
}

}  // namespace

void PathGraph::index_in_edges() {
  in_begin = row_starts(num_nodes(), num_edges(), [&](std::size_t e) { return to[e]; });
  in_edge.resize(num_edges());
  std::vector<std::uint32_t> next(in_begin.begin(), in_begin.end() - 1);
  for (std::size_t e = 0; e < num_edges(); ++e)
    in_edge[next[to[e]]++] = static_cast<std::uint32_t>(e);
}

MatchingPathProblem::MatchingPathProblem(std::span<const std::int64_t> lengths,
                                         std::span<const PathEdge> edges) {
  for (const std::int64_t length : lengths)
    BAECHI_ASSERT(length >= 0, "a node has a negative length");
  for (const PathEdge& edge : edges)
    BAECHI_ASSERT(edge.cost >= 0 && edge.from < lengths.size() && edge.to < lengths.size(),
                  "an edge has a negative cost or joins no node");

  caller_node_ = topological_order(lengths.size(), edges);
  graph_.length.resize(lengths.size());
  std::vector<std::uint32_t> position(lengths.size());
  for (std::size_t at = 0; at < caller_node_.size(); ++at) {
    position[caller_node_[at]] = static_cast<std::uint32_t>(at);
    graph_.length[at] = lengths[caller_node_[at]];
  }

  graph_.out_begin = row_starts(lengths.size(), edges.size(),
                                [&](std::size_t e) { return position[edges[e].from]; });
  graph_.from.resize(edges.size());
  graph_.to.resize(edges.size());
  graph_.cost.resize(edges.size());
  caller_edge_.resize(edges.size());
  std::vector<std::uint32_t> next(graph_.out_begin.begin(), graph_.out_begin.end() - 1);
  for (std::size_t e = 0; e < edges.size(); ++e) {
    const std::uint32_t slot = next[position[edges[e].from]]++;
    graph_.from[slot] = position[edges[e].from];
    graph_.to[slot] = position[edges[e].to];
    graph_.cost[slot] = edges[e].cost;
    caller_edge_[slot] = static_cast<std::uint32_t>(e);
  }
  graph_.index_in_edges();
  unmatched_path_ = checked_longest_path(graph_);
}

}  // namespace baechi::lp
