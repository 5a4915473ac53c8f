// SPDX-License-Identifier: Apache-2.0
// Placements that cut a graph into consecutive parts, one for each device. Beyond the paper.
#pragma once

#include <optional>
#include <vector>

#include "baechi/cost/cost_model.h"
#include "baechi/schedule/schedule.h"

namespace baechi {

// One micro-batch: nothing is on the store.
struct SequenceOfOne {
  Placement device;
  std::vector<OpId> sequence;  // topological

  friend bool operator==(const SequenceOfOne&, const SequenceOfOne&) = default;
};

// Unless there is an equal one.
void add_new(std::optional<SequenceOfOne> one, std::vector<SequenceOfOne>& starts);

// For all devices but the store, for the fastest and those as fast, and for the fastest alone: each
// has as large a part of the forward operators' bytes as of the memory of all; backward operators
// and updates follow. Where devices are unequally fast, also with the slower ones first, which then
// hold no more than they have room for: less is computed there, and their gradients come last.
std::vector<SequenceOfOne> starts_in_parts(const CostModel& costs);

}  // namespace baechi
