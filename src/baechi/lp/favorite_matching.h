// SPDX-License-Identifier: Apache-2.0
// Favorite children without a linear program (Paper 2.4 and 4.4 ask only for a matching F with a
// short w(F)): iterated greedy matching, then swaps on the critical path. Integers only, so the
// result is the same on every platform.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "baechi/base/cancel.h"
#include "baechi/lp/matching_path_problem.h"

namespace baechi::lp {

struct FavoriteMatching {
  // By the caller's node number. child[i] == j exactly when parent[j] == i.
  std::vector<std::optional<std::uint32_t>> child, parent;
  std::int64_t longest_path = 0;  // w(F)
};

struct FavoriteMatchingOptions {
  // Work limits in visited edges, so that the result does not depend on the machine's speed. Small
  // graphs get more iterations out of them, huge ones fewer, never less than four.
  std::int64_t matching_work = 800'000;
  std::int64_t swap_work = 2'000'000;
  const CancelFlag* cancel = nullptr;  // throws Cancelled
};

// Greedy matching by the length of the longest path through each edge, measured under a running
// average of the matchings before it. Returns the best matching seen, after swaps; maximal.
FavoriteMatching find_favorite_matching(const MatchingPathProblem& problem,
                                        const FavoriteMatchingOptions& options = {});

struct MatchingRounding {
  double threshold = 0.5;  // edges with x strictly below it become favorites; the paper's is 0.1
  bool complete = true;    // then extend to a maximal matching: w never grows
};

// Rounds a solution x (one value per edge of the caller) of the relaxation. Where ties or rounding
// errors put two edges of one node below the threshold, the smaller x wins: always a matching.
FavoriteMatching round_to_matching(const MatchingPathProblem& problem, std::span<const double> x,
                                   const MatchingRounding& rounding = {});

// w(F) of any set of edges (`matched` by the caller's edge number), for checks and reports.
std::int64_t longest_path_with(const MatchingPathProblem& problem,
                               const std::vector<bool>& matched);

// A bound that no matching beats: each node in turn sees only its own in-edges, or only its own
// out-edges. O(nodes + edges).
std::int64_t matching_lower_bound(const MatchingPathProblem& problem);

}  // namespace baechi::lp
