// SPDX-License-Identifier: Apache-2.0
// The rules worth trying on stages, and the best of them. Beyond the paper.
#pragma once

#include <cstdint>
#include <vector>

#include "baechi/base/id.h"
#include "baechi/base/units.h"
#include "baechi/cluster/cluster.h"
#include "baechi/place/pipeline/play.h"
#include "baechi/place/pipeline/stages.h"

namespace baechi::pipeline {

// How good a play is: less over capacity first, then a shorter step.
struct Worth {
  Bytes over;
  Time makespan;
  friend auto operator<=>(const Worth&, const Worth&) = default;
};
Worth worth_of(const Played& played, const Cluster& cluster);

// From 1F1B, which holds the least, over the zero-bubble orders to GPipe: how many micro-batches
// stages hold, and whether gradients by weights wait until there is nothing else to do.
std::vector<Rule> rules_for(const StageGraph& graph);

}  // namespace baechi::pipeline
