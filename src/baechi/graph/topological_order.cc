// SPDX-License-Identifier: Apache-2.0
#include "baechi/graph/topological_order.h"

#include <algorithm>
#include <cstdint>
#include <functional>
#include <queue>

namespace baechi {
namespace {

std::span<const Edge> out_edges(const EdgeRows& rows, OpId op) {
  return rows.edges.subspan(rows.begin[op.index()],
                            rows.begin[op.index() + 1] - rows.begin[op.index()]);
}

// Walks backwards from an operator that could not be ordered: each such operator has a parent that
// could not be ordered either, so the walk must meet itself.
Cycle find_cycle(const EdgeRows& rows, const IdVector<OpId, std::uint32_t>& parents_left) {
  IdVector<OpId, std::uint32_t> blocked_parent(parents_left.size());
  std::uint32_t at = 0;
  for (const OpId op : parents_left.keys()) {
    if (parents_left[op] == 0) continue;
    at = op.value();
    for (const Edge& edge : out_edges(rows, op))
      if (parents_left[edge.to] != 0) blocked_parent[edge.to] = op.value();
  }
  IdVector<OpId, char> seen(parents_left.size());
  for (; seen[OpId(at)] == 0; at = blocked_parent[OpId(at)]) seen[OpId(at)] = 1;

  Cycle cycle;
  const std::uint32_t start = at;
  do {
    cycle.ops.push_back(OpId(at));
    at = blocked_parent[OpId(at)];
  } while (at != start);
  std::reverse(cycle.ops.begin(), cycle.ops.end());
  std::rotate(cycle.ops.begin(), std::min_element(cycle.ops.begin(), cycle.ops.end()),
              cycle.ops.end());
  return cycle;
}

bool ids_are_topological(const EdgeRows& rows) {
  return std::all_of(rows.edges.begin(), rows.edges.end(),
                     [](const Edge& edge) { return edge.from < edge.to; });
}

}  // namespace

std::variant<std::vector<OpId>, Cycle> topological_order(const EdgeRows& rows) {
  const std::size_t num_ops = rows.begin.size() - 1;
  std::vector<OpId> order;
  order.reserve(num_ops);
  if (ids_are_topological(rows)) {
    for (const OpId op : IdRange<OpId>(num_ops)) order.push_back(op);
    return order;
  }

  IdVector<OpId, std::uint32_t> parents_left(num_ops);
  for (const Edge& edge : rows.edges) ++parents_left[edge.to];
  std::priority_queue<OpId, std::vector<OpId>, std::greater<>> free;
  for (const OpId op : parents_left.keys())
    if (parents_left[op] == 0) free.push(op);
  while (!free.empty()) {
    const OpId op = free.top();
    free.pop();
    order.push_back(op);
    for (const Edge& edge : out_edges(rows, op))
      if (--parents_left[edge.to] == 0) free.push(edge.to);
  }
  if (order.size() != num_ops) return find_cycle(rows, parents_left);
  return order;
}

std::vector<OpId> program_order(const OpGraph& graph) {
  std::vector<OpId> order, waiting, missing;
  order.reserve(graph.num_ops());
  enum class State : std::uint8_t { kUnseen, kWaits, kDone };
  IdVector<OpId, State> state(graph.num_ops());
  for (const OpId next : graph.ops()) {
    waiting.assign({next});
    while (!waiting.empty()) {
      const OpId op = waiting.back();
      if (state[op] != State::kUnseen) {
        waiting.pop_back();
        if (state[op] == State::kWaits) order.push_back(op);
        state[op] = State::kDone;
        continue;
      }
      state[op] = State::kWaits;
      missing.clear();
      for (const Edge& edge : graph.in_edges(op))
        if (state[edge.from] == State::kUnseen) missing.push_back(edge.from);
      std::sort(missing.begin(), missing.end(), std::greater<>());
      waiting.insert(waiting.end(), missing.begin(), missing.end());
    }
  }
  return order;
}

}  // namespace baechi
