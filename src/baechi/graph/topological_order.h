// SPDX-License-Identifier: Apache-2.0
// Topological orders, and the cycle that forbids one.
#pragma once

#include <cstddef>
#include <functional>
#include <queue>
#include <span>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "baechi/base/id.h"
#include "baechi/graph/op_graph.h"

namespace baechi {

// Edges grouped by `from`: row i of `edges` starts at `begin[i]`; begin has num_ops + 1 entries.
struct EdgeRows {
  std::span<const Edge> edges;
  std::span<const std::uint32_t> begin;
};

// The operators of one cycle, in order; the last one has an edge to the first.
struct Cycle {
  std::vector<OpId> ops;
};

// Kahn's algorithm, smallest id first among the free. O(edges + ops log ops); linear when the ids
// are topological already.
std::variant<std::vector<OpId>, Cycle> topological_order(const EdgeRows& rows);

// The order in which a program runs a graph: that of its ids, and what waits for a later operator right
// behind it. So a second run of an operator stands right before its first reader. O(edges log edges).
std::vector<OpId> program_order(const OpGraph& graph);

// In a topological order: among the free the one with the least key first, then by id.
template <class KeyOf>
std::vector<OpId> order_by_key(const OpGraph& graph, const KeyOf& key_of) {
  using Entry = std::pair<std::invoke_result_t<const KeyOf&, OpId>, OpId>;
  std::priority_queue<Entry, std::vector<Entry>, std::greater<>> free;
  IdVector<OpId, std::size_t> waits(graph.num_ops());
  for (const OpId op : graph.ops()) {
    waits[op] = graph.in_edges(op).size();
    if (waits[op] == 0) free.emplace(key_of(op), op);
  }
  std::vector<OpId> order;
  order.reserve(graph.num_ops());
  while (!free.empty()) {
    order.push_back(free.top().second);
    free.pop();
    for (const Edge& edge : graph.out_edges(order.back()))
      if (--waits[edge.to] == 0) free.emplace(key_of(edge.to), edge.to);
  }
  return order;
}

}  // namespace baechi
