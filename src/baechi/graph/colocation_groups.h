// SPDX-License-Identifier: Apache-2.0
// Colocation groups: sets of operators that must share a device. Groups that share a member merge.
#pragma once

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "baechi/base/id.h"

namespace baechi {

struct ColocationGroups {
  IdVector<OpId, std::optional<GroupId>> group_of;
  // Members of group g, in id order: members[begin[g]] .. members[begin[g + 1] - 1].
  std::vector<OpId> members;
  std::vector<std::uint32_t> begin;
};

// `memberships` pairs operators with group names 0 .. num_names-1. Groups are numbered by their
// smallest member, and a group of one operator counts as a group. Near-linear (union-find).
ColocationGroups merge_groups(std::size_t num_ops, std::size_t num_names,
                              const std::vector<std::pair<OpId, std::uint32_t>>& memberships);

}  // namespace baechi
