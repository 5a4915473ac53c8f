// SPDX-License-Identifier: Apache-2.0
// m-ETF: earliest task first under memory limits (Paper 2.3).
//
// A queue holds pairs (operator, device) by earliest schedulable time, equation (1) plus the waits
// in transfer queues. The head is scheduled if its device has room for the operator; else the pair
// is removed. An operator whose parents are all placed joins the queue with every device.
//
// A colocation group goes where the first of its operators to be scheduled goes, and the memory for
// all of it is reserved there.
#include <cstdint>

#include "baechi/place/allowed_devices.h"
#include "baechi/place/cluster_state.h"
#include "baechi/place/pair_queue.h"
#include "baechi/place/placer.h"

namespace baechi {

PlaceResult place_m_etf(const CostModel& costs, const PlaceOptions& options) {
  const OpGraph& graph = costs.graph();
  const AllowedDevices allowed(costs);
  if (const auto op = allowed.first_impossible()) return DoesNotFit{*op, Bytes(0)};

  ClusterState state(costs, allowed, options.memory);
  PairQueue queue(state, allowed);
  IdVector<OpId, std::uint32_t> unplaced_parents(graph.num_ops());
  for (const OpId op : graph.ops()) {
    unplaced_parents[op] = static_cast<std::uint32_t>(graph.in_edges(op).size());
    if (unplaced_parents[op] == 0) queue.add(op);
  }

  while (const std::optional<Candidate> head = queue.earliest()) {
    if (!state.fits(head->op, head->device)) {
      queue.drop(*head);
      continue;
    }
    state.place(head->op, head->device);
    queue.placed(head->op);
    for (const Edge& edge : graph.out_edges(head->op))
      if (--unplaced_parents[edge.to] == 0) queue.add(edge.to);
    if (state.num_placed() % 1024 == 0) throw_if_cancelled(options.cancel);
  }
  if (state.num_placed() < graph.num_ops()) return queue.failure();
  return state.take_plan();
}

}  // namespace baechi
