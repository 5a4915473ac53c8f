// SPDX-License-Identifier: Apache-2.0
// Operator fusion: operators of one group that follow each other become one meta-operator
// (Paper 3.1.3). How long they may get, and searching for second paths, is beyond the paper.
#pragma once

#include <cstddef>
#include <string>

#include "baechi/base/units.h"
#include "baechi/cost/cost_model.h"
#include "baechi/optimize/contraction.h"
#include "baechi/optimize/optimized.h"

namespace baechi {

struct FusionOptions {
  // Also contract edges of which a search proves that they are the only path between their ends,
  // not only those for which the degrees prove it, as in the paper.
  bool by_reachability = true;
  // Edges that one such search may follow.
  std::size_t search_limit = 200;
  // A meta-operator computes no longer than so many times as it takes to send a typical tensor: it
  // starts only when all its inputs are there, so a long one keeps other devices waiting.
  double grain = 8;
};

struct Fusion {
  OpLabels cluster;                                // equal for operators that become one
  std::size_t by_degree = 0, by_reachability = 0;  // edges contracted, by what made it safe
  std::size_t would_cycle = 0, gave_up = 0;        // edges left, by reason
};

// Fuses within the sets of operators with equal `group` labels.
Fusion find_fusions(const CostModel& costs, const OpLabels& group, const FusionOptions& options);

std::string describe(const Fusion& fusion);

// Fuses within the graph's colocation groups.
Optimized fuse(const CostModel& costs, const FusionOptions& options = {});

}  // namespace baechi
