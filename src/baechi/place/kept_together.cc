// SPDX-License-Identifier: Apache-2.0
#include "baechi/place/kept_together.h"

namespace baechi {

UnionFind kept_together(const CostModel& costs) {
  const OpGraph& graph = costs.graph();
  UnionFind sets(graph.num_ops());
  for (const GroupId group : graph.groups())
    for (const OpId op : graph.members(group))
      sets.unite(op.value(), graph.members(group)[0].value());
  for (const OpId op : graph.ops())
    if (graph[op].forward.has_value() && costs.pin(op) == costs.pin(*graph[op].forward))
      sets.unite(op.value(), graph[op].forward->value());
  return sets;
}

}  // namespace baechi
