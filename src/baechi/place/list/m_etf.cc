// SPDX-License-Identifier: Apache-2.0
// m-ETF: earliest task first under memory limits (Paper 2.3).
//
// A queue holds pairs (operator, device) by earliest schedulable time, equation (1) plus the waits
// in transfer queues. The head is scheduled if its device has room for the operator; else the pair
// is removed. An operator whose parents are all placed joins the queue with every device.
//
// A colocation group goes where the first of its operators to be scheduled goes, and the memory for
// all of it is reserved there.

#include <optional>
#include <span>

#include "baechi/place/allowed_devices.h"
#include "baechi/place/list/cluster_state.h"
#include "baechi/place/list/pair_queue.h"
#include "baechi/place/list/priority.h"
#include "baechi/place/list/ready_ops.h"
#include "baechi/place/list/suppliers.h"
#include "baechi/place/placer.h"

namespace baechi {

PlaceResult place_m_etf(const CostModel& costs, const PlaceOptions& options) {
  const OpGraph& graph = costs.graph();
  const AllowedDevices allowed(costs);
  if (const auto op = allowed.first_impossible()) return DoesNotFit{*op, Bytes(0)};

  ClusterState state(costs, allowed, options);
  const IdVector<OpId, bool> suppliers =
      options.call_suppliers ? find_suppliers(costs) : IdVector<OpId, bool>(graph.num_ops());
  const Priority priority = longest_way_first(costs, suppliers);
  PairQueue queue(state, allowed, priority);
  ReadyOps ready(state, suppliers);
  const auto enqueue = [&](std::span<const OpId> ops) {
    for (const OpId op : ops) queue.add(op);
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
      enqueue(ready.placed(head->op));
      if (state.num_placed() % 1024 == 0) throw_if_cancelled(options.cancel);
    }
  } while (enqueue(ready.rest()));
  if (state.num_placed() < graph.num_ops()) return queue.failure();
  return state.take_plan();
}

}  // namespace baechi
