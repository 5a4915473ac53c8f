// SPDX-License-Identifier: Apache-2.0
#include "baechi/graph/colocation_groups.h"

#include <numeric>

#include "baechi/graph/union_find.h"

namespace baechi {

ColocationGroups merge_groups(std::size_t num_ops, std::size_t num_names,
                              const std::vector<std::pair<OpId, std::uint32_t>>& memberships) {
  UnionFind names(num_names);
  IdVector<OpId, std::optional<std::uint32_t>> name_of(num_ops);
  for (const auto& [op, name] : memberships) {
    if (name_of[op].has_value())
      names.unite(*name_of[op], name);
    else
      name_of[op] = name;
  }

  ColocationGroups groups;
  groups.group_of.resize(num_ops);
  std::vector<std::optional<GroupId>> group_of_name(num_names);
  groups.begin.assign(1, 0);
  for (const OpId op : name_of.keys()) {
    if (!name_of[op].has_value()) continue;
    std::optional<GroupId>& group = group_of_name[names.find(*name_of[op])];
    if (!group.has_value()) {
      group = GroupId(groups.begin.size() - 1);
      groups.begin.push_back(0);
    }
    groups.group_of[op] = group;
    ++groups.begin[group->index() + 1];
  }
  std::partial_sum(groups.begin.begin(), groups.begin.end(), groups.begin.begin());
  groups.members.assign(groups.begin.back(), OpId(0));
  std::vector<std::uint32_t> next = groups.begin;
  for (const OpId op : name_of.keys())
    if (groups.group_of[op].has_value()) groups.members[next[groups.group_of[op]->index()]++] = op;
  return groups;
}

}  // namespace baechi
