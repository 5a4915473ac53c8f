// SPDX-License-Identifier: Apache-2.0
// Colocation groups, which the framework demands (Paper 3.1.1): prepared for placers that adjust
// while they place, and the ways to repair a placement that ignored them.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "baechi/base/id.h"
#include "baechi/base/units.h"
#include "baechi/cost/cost_model.h"
#include "baechi/optimize/contraction.h"
#include "baechi/optimize/optimized.h"
#include "baechi/schedule/schedule.h"

namespace baechi {

enum class ColocationMode : std::uint8_t {
  kCoAdjust,  // placers see the groups: the first operator placed decides for all
  kIgnore,    // placers do not see them; post_adjust() has to mend the placement
};

struct ColocationOptions {
  ColocationMode mode = ColocationMode::kCoAdjust;
};

// The same operators and edges. Groups that share a member are one, named after their first
// operator, and groups of one operator are gone; with kIgnore all are.
Optimized colocate(const CostModel& costs, const ColocationOptions& options = {});

OpLabels colocation_labels(const OpGraph& graph, const ColocationOptions& options);
std::string describe(const ColocationOptions& options);

// What a device needs to hold one whole group: the peak over the topological order, when every
// other operator runs elsewhere in that order, of the group's permanent memory, the running
// member's temporary memory, the members' live tensors, and received copies from their production
// to their last use in the group. O(operators + edges).
IdVector<GroupId, Bytes> group_memory(const OpGraph& graph);

// Which device gets a group that a placement has torn apart (Paper 3.1.1): the one with the most
// of the group's compute time, of its memory, or of its operators; ties go to the smallest id.
enum class PostAdjust : std::uint8_t { kComputeDominant, kMemoryDominant, kMajority };

struct PostAdjustName {
  PostAdjust strategy;
  std::string_view name;  // "compute-dominant", ...
};
std::span<const PostAdjustName> post_adjust_names();

// Puts every group of the graph on one device that may run it all; a group that no device may run
// stays as it is. With an order given, devices keep to it as far as they share operators: the
// result has no deadlock if the given plan has none.
PlacedGraph post_adjust(const CostModel& costs, const PlacedGraph& placed, PostAdjust strategy);

}  // namespace baechi
