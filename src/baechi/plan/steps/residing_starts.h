// SPDX-License-Identifier: Apache-2.0
// Where operators run, and in which order, before anything is sent away. Beyond the paper.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "baechi/cost/cost_model.h"
#include "baechi/plan/request/request.h"
#include "baechi/plan/residency/residency_choice.h"
#include "baechi/plan/steps/starts_in_parts.h"

namespace baechi {

struct PlannedStarts {
  std::vector<SequenceOfOne> sequences;  // no two are equal
  bool is_planned = false;               // whether a plan was made
};

// In parts; and, with several devices but the store, of a plan of so many micro-batches for these
// alone, as if they had just as many times their memory as the step takes, so that all of them hold
// something.
PlannedStarts sequences_of_one(const CostModel& costs, std::uint32_t micro_batches,
                               const PlanRequest& request);

// Of a plan that may keep tensors away: updates and variables on the store go beside what they read,
// or what reads them. Nothing if one of them would be nowhere.
std::optional<SequenceOfOne> sequence_of_known(const CostModel& costs, const Plan& known);

// How the micro-batches of a step go through a sequence: a group of so many after the other, and in it
// all of them through a block of operators, which read so much of variables, before the next block.
struct InGroups {
  std::uint32_t micro_batches = 1;
  Bytes block;
};
ResidencyStart start_in_groups(const ResidencyProblem& problem, const SequenceOfOne& one,
                               const InGroups& grouping);
std::vector<InGroups> groupings(const Cluster& cluster, std::uint32_t micro_batches);

Bytes least_memory(const Cluster& cluster);  // of a device

}  // namespace baechi
