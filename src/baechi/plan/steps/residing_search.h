// SPDX-License-Identifier: Apache-2.0
// What is kept away and what runs again, chosen together. Beyond the paper.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "baechi/cost/cost_model.h"
#include "baechi/graph/op_graph.h"
#include "baechi/graph/recomputation.h"
#include "baechi/graph/replicas.h"
#include "baechi/graph/unroll.h"
#include "baechi/plan/request/request.h"
#include "baechi/plan/residency/residency_replay.h"
#include "baechi/plan/steps/starts_in_parts.h"

namespace baechi {

enum class ResidencyEffort : std::uint8_t {
  kAll,  // nothing stays that may be away
  kFew,  // a few tries
  kMany
};

// For these second runs: the step, and what is best kept away in it.
struct ResidingVariant {
  std::vector<Recomputation> again;
  std::unique_ptr<Unrolled> step;  // before anything is away
  ReplayedResidency found;
  Replicas copies = {};  // that share the operators of the step, if micro-batches are apart
};

// Where nothing fits, the one that lacks least; nothing if no device may run all, or if what the host
// cannot keep is too much for the others. With kFew there are fewer choices of second runs. `known` is
// as StepRequest's, or null; `given` is a start instead of all that there are. The budget is for this alone.
std::optional<ResidingVariant> best_residing(const OpGraph& graph, std::uint32_t micro_batches,
                                             const Cluster& cluster, const PlanRequest& request,
                                             Recompute recompute, ResidencyEffort effort,
                                             const Plan* known = nullptr,
                                             const std::optional<SequenceOfOne>& given = {});

}  // namespace baechi
