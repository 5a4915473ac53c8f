// SPDX-License-Identifier: Apache-2.0
// The Graph Optimizer: the passes one after the other (Paper 3.1.1 - 3.1.3).
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "baechi/base/cancel.h"
#include "baechi/cost/cost_model.h"
#include "baechi/optimize/colocation.h"
#include "baechi/optimize/coplacement.h"
#include "baechi/optimize/forward_only.h"
#include "baechi/optimize/fusion.h"
#include "baechi/optimize/optimized.h"

namespace baechi {

// How far to go; each level that is not kNone respects colocation groups.
enum class OptimizeLevel : std::uint8_t {
  kNone,      // the graph as it is
  kColocate,  // colocation groups, tidied up
  kCoplace,   // also co-placement
  kFuse,      // also fusion, within the groups that co-placement makes
  kForward,   // co-placement, and forward operators only
  kAll,       // all of it
};

struct OptimizeLevelName {
  OptimizeLevel level;
  std::string_view name;  // on the command line and in Python: "none", "colocate", ...
  std::string_view summary;
};
std::span<const OptimizeLevelName> optimize_levels();

struct OptimizeOptions {
  OptimizeLevel level = OptimizeLevel::kAll;
  ColocationOptions colocation = {};
  CoplacementOptions coplacement = {};
  FusionOptions fusion = {};
  ForwardOnlyOptions forward_only = {};
  const CancelFlag* cancel = nullptr;  // when set: optimize() throws Cancelled
};

// Like the passes one by one with their expansions composed, but faster: all passes up to
// forward_only build one graph between them.
Optimized optimize(const CostModel& costs, const OptimizeOptions& options = {});

}  // namespace baechi
