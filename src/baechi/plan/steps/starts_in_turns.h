// SPDX-License-Identifier: Apache-2.0
// Placements in which the copies of an operator for the micro-batches are apart. Beyond the paper.
#pragma once

#include <cstdint>
#include <optional>

#include "baechi/cost/cost_model.h"
#include "baechi/graph/replicas.h"
#include "baechi/plan/steps/starts_in_parts.h"

namespace baechi {

// Of replicas of `one` that share the operators of the step, whose graph `costs` has: each goes through
// stages that take about as long as each other, the next of them on the device that ends it first; where
// groups tie a backward operator to forward ones, it follows them. Of stages of several lengths those with
// the shortest step if everything had room. About so many operators are simulated for it.
std::optional<SequenceOfOne> in_turns(const OpGraph& one, const Replicas& copies,
                                      const CostModel& costs, std::int64_t most);

}  // namespace baechi
