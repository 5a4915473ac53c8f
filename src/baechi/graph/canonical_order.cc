// SPDX-License-Identifier: Apache-2.0
#include "baechi/graph/canonical_order.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <queue>
#include <tuple>

#include "baechi/base/wide.h"
#include "baechi/graph/op_hash.h"

namespace baechi {
namespace {

Time least_time(const OpGraph& graph, OpId op) {
  std::optional<Time> least;
  for (const KindId kind : graph.kinds())
    if (const std::optional<Time> time = graph.times(kind)[op])
      least = std::min(least.value_or(*time), *time);
  return least.value_or(Time(0));
}

struct Place {  // of an operator in the graph
  WideInt before = 0, behind = 0;
  Hash above = 0, below = 0, around = 0;
};

IdVector<OpId, Place> places(const OpGraph& graph) {
  IdVector<OpId, Place> places(graph.num_ops());
  const auto order = graph.topological_order();
  for (const OpId op : order) {
    Place& place = places[op];
    Hash parents = 0;
    for (const Edge& edge : graph.in_edges(op)) {
      const Place& parent = places[edge.from];
      place.before = std::max(place.before, parent.before + least_time(graph, edge.from).count());
      parents += mix(parent.above, port_of(graph, edge));
    }
    place.above = mix(hash_of(graph, op), parents);
  }
  for (auto op = order.rbegin(); op != order.rend(); ++op) {
    Place& place = places[*op];
    Hash children = 0;
    for (const Edge& edge : graph.out_edges(*op)) {
      const Place& child = places[edge.to];
      place.behind = std::max(place.behind, child.behind + least_time(graph, edge.to).count());
      children += mix(child.below, port_of(graph, edge));
    }
    place.below = mix(place.above, children);
  }
  for (const OpId op : graph.ops()) {
    if (const std::optional<OpId> forward = graph[op].forward) {
      places[op].around += mix(2, places[*forward].below);
      places[*forward].around += mix(3, places[op].below);
    }
  }
  for (const GroupId group : graph.groups()) {
    Hash members = 0;
    for (const OpId op : graph.members(group)) members += places[op].below;
    for (const OpId op : graph.members(group)) places[op].around += mix(4, members);
  }
  return places;
}

}  // namespace

std::vector<OpId> canonical_order(const OpGraph& graph) {
  const IdVector<OpId, Place> place = places(graph);
  const auto later = [&](OpId a, OpId b) {
    const Place &x = place[a], &y = place[b];
    return std::tie(x.before, y.behind, x.below, x.around, graph[a].name) >
           std::tie(y.before, x.behind, y.below, y.around, graph[b].name);
  };
  std::priority_queue<OpId, std::vector<OpId>, decltype(later)> free(later);
  IdVector<OpId, std::uint32_t> parents_left(graph.num_ops());
  for (const OpId op : graph.ops()) {
    parents_left[op] = static_cast<std::uint32_t>(graph.in_edges(op).size());
    if (parents_left[op] == 0) free.push(op);
  }
  std::vector<OpId> order;
  order.reserve(graph.num_ops());
  while (!free.empty()) {
    const OpId op = free.top();
    free.pop();
    order.push_back(op);
    for (const Edge& edge : graph.out_edges(op))
      if (--parents_left[edge.to] == 0) free.push(edge.to);
  }
  return order;
}

}  // namespace baechi
