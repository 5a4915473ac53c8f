// SPDX-License-Identifier: Apache-2.0
#include "baechi/place/pipeline/expand.h"

namespace baechi::pipeline {

PlacedGraph expand(const Blocks& blocks, const Division& division, const Actions& actions,
                   const Unrolled& unrolled) {
  const auto device_of = [&](OpId op) {
    return division.device[division.stage_of[blocks.block_of(unrolled.original[op])]];
  };
  PlacedGraph placed{Placement(unrolled.graph.num_ops(), DeviceId(0)), DeviceOrder(actions.size())};
  for (const OpId op : unrolled.graph.ops()) placed.device[op] = device_of(op);

  IdVector<PartId, std::vector<OpId>> part_ops(division.device.size() * kEveryMicroBatch.size());
  for (const OpId op : blocks.costs().graph().topological_order())
    if (const Phase phase = blocks.phase_of(op); phase != Phase::kBefore && phase != Phase::kAfter)
      part_ops[StageGraph::part(division.stage_of[blocks.block_of(op)], phase)].push_back(op);

  const auto per_step = [&](bool before) {
    for (const OpId op : unrolled.graph.topological_order()) {
      if (unrolled.micro_batch[op].has_value()) continue;
      const bool first =
          !unrolled.is_sum(op) && blocks.phase_of(unrolled.original[op]) == Phase::kBefore;
      if (first == before) (*placed.order)[placed.device[op]].push_back(op);
    }
  };
  per_step(true);
  for (const DeviceId device : actions.keys())
    for (const Action& action : actions[device])
      for (const OpId op : part_ops[action.part])
        (*placed.order)[device].push_back(unrolled.copy(op, action.micro_batch));
  per_step(false);
  return placed;
}

}  // namespace baechi::pipeline
