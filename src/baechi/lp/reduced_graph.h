// SPDX-License-Identifier: Apache-2.0
// Presolve of the matching-path relaxation (see matching_path_problem.h), in the form the solvers
// work on: y = 1 - x is how much of an edge's cost the fractional matching takes off.
//
// An edge is a knob, whose length is `length - cost * y`, or plain (cost 0). The knobs that leave
// one node of the original graph share a group, and so do those that enter one: the y of a group
// sum to at most 1. Groups with one knob left restrict nothing and are all the same group,
// kFreeGroup.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "baechi/lp/matching_path_problem.h"

namespace baechi::lp {

inline constexpr std::uint32_t kFreeGroup = 0;

struct ReducedGraph {
  std::size_t num_edges() const { return from.size(); }

  // Nodes are numbered topologically; 0 is the one source, the last the one sink.
  std::size_t num_nodes = 2;
  std::size_t num_groups = 1;  // kFreeGroup included

  // By edge, sorted by `from`.
  std::vector<std::uint32_t> from, to;
  std::vector<double> length, cost;                // in units of the longest unmatched path
  std::vector<std::uint32_t> out_group, in_group;  // of knobs; kFreeGroup for plain edges
  std::vector<std::uint32_t> original;             // the PathGraph's edge, for knobs

  std::vector<std::uint32_t> taken;  // edges of the PathGraph whose y = 1 costs nothing
  double lower_bound = 0;            // the relaxation's optimum is at least this
  double unit = 1;                   // nanoseconds per unit of length
};

// Removes what no optimal solution needs. For every y of the result, extended by 1 for `taken`
// edges and 0 for the rest, w on the original graph is max(lower_bound, w on the reduced one).
//
// `keep`, when given, removes the other edges of the original graph beforehand: a relaxation whose
// lower bound still holds for the whole problem. O(nodes + edges).
ReducedGraph reduce(const MatchingPathProblem& problem, const std::vector<bool>* keep = nullptr);

}  // namespace baechi::lp
