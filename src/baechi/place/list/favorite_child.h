// SPDX-License-Identifier: Apache-2.0
// Favorite children (Paper 2.4, 4.4): which operator should follow which on the same device, so
// that the longest path pays for as little communication as can be.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "baechi/base/id.h"
#include "baechi/base/units.h"
#include "baechi/cost/cost_model.h"
#include "baechi/lp/matching_path_problem.h"
#include "baechi/place/placer.h"

namespace baechi {

// A matching F: child[i] == j exactly when parent[j] == i, and every operator has at most one of
// each.
struct FavoriteChildren {
  IdVector<OpId, std::optional<OpId>> child, parent;
  Time longest_path;  // w(F): with every other edge paying its transfer
  Time bound;         // no matching's path is shorter
  FavoriteMethod method = FavoriteMethod::kMatching;  // whose they are

  // w(F) / bound; 1 for a graph without any time.
  double ratio() const;
};

// Communication time of an edge, for choosing favorites: over the link of median speed. Several
// tensors between one pair of operators add up where transfers queue, else the longest counts.
FavoriteChildren find_favorite_children(const CostModel& costs, const PlaceOptions& options);

// The problem that find_favorite_children() solves: node i is operator i.
struct FavoriteProblem {
  std::vector<std::int64_t> lengths;  // by operator: its time on the fastest device it may use
  std::vector<lp::PathEdge> edges;    // one per pair of operators; control edges cost nothing
  double rho = 0;                     // longest communication / shortest positive time
};
FavoriteProblem favorite_problem(const CostModel& costs);

}  // namespace baechi
