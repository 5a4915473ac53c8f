// SPDX-License-Identifier: Apache-2.0
#include "baechi/place/list/list_scheduler.h"

#include <optional>
#include <span>

#include "baechi/place/list/awake_devices.h"
#include "baechi/place/list/cluster_state.h"
#include "baechi/place/list/pair_queue.h"
#include "baechi/place/list/priority.h"
#include "baechi/place/list/ready_ops.h"
#include "baechi/place/list/suppliers.h"

namespace baechi {

PlaceResult run_list_scheduler(const CostModel& costs, const AllowedDevices& allowed,
                               const PlaceOptions& options, const FavoriteChildren* favorites) {
  const OpGraph& graph = costs.graph();
  ClusterState state(costs, allowed, options);
  const IdVector<OpId, bool> suppliers =
      options.call_suppliers ? find_suppliers(costs) : IdVector<OpId, bool>(graph.num_ops());
  const Priority priority = longest_way_first(costs, suppliers);
  PairQueue queue(state, allowed, priority);
  std::optional<AwakeDevices> awake;
  if (favorites != nullptr) awake.emplace(state, queue, *favorites);
  ReadyOps ready(state, suppliers);
  const auto enqueue = [&](std::span<const OpId> ops) {
    for (const OpId op : ops) {
      if (awake.has_value()) awake->ready(op);
      queue.add(op);
    }
    return !ops.empty();
  };

  enqueue(ready.start());
  do {
    while (const std::optional<Candidate> head = queue.earliest()) {
      if (!state.fits(head->op, head->device)) {
        queue.drop(*head);
        continue;
      }
      state.place(head->op, head->device);
      queue.placed(head->op);
      if (awake.has_value()) awake->placed(head->op);
      enqueue(ready.placed(head->op));
      if (state.num_placed() % 1024 == 0) throw_if_cancelled(options.cancel);
    }
  } while (enqueue(ready.rest()));
  if (state.num_placed() < graph.num_ops()) return queue.failure();
  return state.take_plan();
}

}  // namespace baechi
