// SPDX-License-Identifier: Apache-2.0
// Slow, obvious answers about matchings and longest paths, to check the fast ones against.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

#include "baechi/lp/favorite_matching.h"
#include "unit/lp/path_instances.h"

namespace baechi::lp::oracle {

// The longest path when edge e pays pay[e], by relaxing all edges until nothing moves.
template <class Number>
Number longest_path(const instances::Instance& instance, const std::vector<Number>& pay) {
  std::vector<Number> start(instance.lengths.size(), 0);
  Number longest = 0;
  for (bool moved = true; moved;) {
    moved = false;
    for (std::size_t e = 0; e < instance.edges.size(); ++e) {
      const PathEdge& edge = instance.edges[e];
      const Number arrival =
          start[edge.from] + static_cast<Number>(instance.lengths[edge.from]) + pay[e];
      if (arrival > start[edge.to]) {
        start[edge.to] = arrival;
        moved = true;
      }
    }
  }
  for (std::size_t node = 0; node < start.size(); ++node)
    longest = std::max(longest, start[node] + static_cast<Number>(instance.lengths[node]));
  return longest;
}

inline std::vector<std::int64_t> pay(const instances::Instance& instance,
                                     const std::vector<bool>& matched) {
  std::vector<std::int64_t> result;
  for (std::size_t e = 0; e < instance.edges.size(); ++e)
    result.push_back(matched[e] ? 0 : instance.edges[e].cost);
  return result;
}

// The edges that join a node with its favorite child; empty when child and parent disagree or a
// favorite is no child at all.
inline std::optional<std::vector<bool>> matched_edges(const instances::Instance& instance,
                                                      const FavoriteMatching& favorites) {
  std::vector<bool> matched(instance.edges.size(), false);
  std::size_t found = 0, children = 0, parents = 0;
  for (std::size_t e = 0; e < instance.edges.size(); ++e) {
    const PathEdge& edge = instance.edges[e];
    if (favorites.child[edge.from] != edge.to || favorites.parent[edge.to] != edge.from) continue;
    matched[e] = true;
    ++found;
  }
  for (const auto& child : favorites.child) children += child ? 1U : 0U;
  for (const auto& parent : favorites.parent) parents += parent ? 1U : 0U;
  if (found != children || found != parents) return std::nullopt;
  return matched;
}

// The least w(F) over all matchings, by trying them all.
inline std::int64_t best_longest_path(const instances::Instance& instance) {
  std::vector<bool> matched(instance.edges.size(), false), child(instance.lengths.size(), false),
      parent(instance.lengths.size(), false);
  std::int64_t best = longest_path(instance, pay(instance, matched));
  const auto extend = [&](const auto& self, std::size_t e) -> void {
    if (e == instance.edges.size()) {
      best = std::min(best, longest_path(instance, pay(instance, matched)));
      return;
    }
    self(self, e + 1);
    const PathEdge& edge = instance.edges[e];
    if (child[edge.from] || parent[edge.to]) return;
    matched[e] = child[edge.from] = parent[edge.to] = true;
    self(self, e + 1);
    matched[e] = child[edge.from] = parent[edge.to] = false;
  };
  extend(extend, 0);
  return best;
}

}  // namespace baechi::lp::oracle
