// SPDX-License-Identifier: Apache-2.0
// m-SCT: small communication times under memory limits (Paper 2.4, Appendix B).
//
// Definitions. Every operator has at most one favorite child and is the favorite child of at most
// one (favorite_child.h). At a time t,
//
//   an operator is urgent  if it could start on any device it may use: its inputs could have
//                          reached them all by now;
//   a device is    busy    while it runs an operator;
//                  awake   if it is not busy, and the favorite child of its last operator i has not
//                          been placed, may still go there, and no other device is where its inputs
//                          are earlier; but only until i's output could have reached any device,
//                          since then nothing is lost by going elsewhere;
//                  free    if it is neither.
//
// m-SCT is m-ETF in which an awake device takes only that favorite child, or an urgent operator.
// In the queue of pairs: on a device that is held for a favorite child, any other operator's
// earliest schedulable time is not before it is urgent, or the device is awake no longer.
#include <algorithm>
#include <optional>
#include <span>

#include "baechi/place/allowed_devices.h"
#include "baechi/place/list/cluster_state.h"
#include "baechi/place/list/favorite_child.h"
#include "baechi/place/list/pair_queue.h"
#include "baechi/place/list/priority.h"
#include "baechi/place/list/ready_ops.h"
#include "baechi/place/list/suppliers.h"
#include "baechi/place/placer.h"

namespace baechi {
namespace {

class AwakeDevices {
 public:
  AwakeDevices(const ClusterState& state, PairQueue& queue, const FavoriteChildren& favorites)
      : state_(state), queue_(queue), favorites_(favorites), last_(state.num_devices()) {}

  // `op` is now the last operator of its device, and no longer anyone's unplaced favorite child.
  void placed(OpId op) {
    const DeviceId device = state_.device(op);
    last_[device] = op;
    queue_.release(device);
    if (const auto parent = favorites_.parent[op]) release_from(*parent, op);
    if (const auto group = state_.group(op)) group_decided(*group, device);
  }

  // All parents of `op` have been placed: the device of its favorite parent may wait for it.
  void ready(OpId op) {
    const auto parent = favorites_.parent[op];
    if (!parent.has_value()) return;
    const DeviceId device = state_.device(*parent);
    if (!state_.may_go(op, device)) return release_from(*parent, op);
    if (last_[device] != *parent) return;
    const Time here = state_.undisturbed_arrival(op, device);
    for (const DeviceId other : state_.costs().cluster().devices())
      if (state_.may_go(op, other) && state_.undisturbed_arrival(op, other) < here) return;
    queue_.hold(device, {op, state_.end(*parent) + sending_time(*parent, op)});
  }

 private:
  bool waits_for(DeviceId device, OpId favorite) const {
    return queue_.held(device).has_value() && queue_.held(device)->favorite == favorite;
  }

  void release_from(OpId parent, OpId favorite) {
    const DeviceId device = state_.device(parent);
    if (waits_for(device, favorite)) queue_.release(device);
  }

  // Favorite children of this group that other devices wait for will not come.
  void group_decided(GroupId group, DeviceId device) {
    for (const DeviceId other : state_.costs().cluster().devices()) {
      const auto& hold = queue_.held(other);
      if (other != device && hold && state_.group(hold->favorite) == group) queue_.release(other);
    }
  }

  // The longest that a tensor from `op` to `child` takes from op's device to any other.
  Time sending_time(OpId op, OpId child) const {
    const DeviceId from = state_.device(op);
    Time longest;
    for (const Edge& edge : state_.costs().graph().in_edges(child)) {
      if (edge.from != op || !edge.tensor.has_value()) continue;
      for (const DeviceId to : state_.costs().cluster().devices())
        if (to != from)
          longest = std::max(longest, state_.transfer_times()(*edge.tensor, from, to));
    }
    return longest;
  }

  const ClusterState& state_;
  PairQueue& queue_;
  const FavoriteChildren& favorites_;
  IdVector<DeviceId, std::optional<OpId>> last_;
};

}  // namespace

PlaceResult place_m_sct(const CostModel& costs, const PlaceOptions& options) {
  const OpGraph& graph = costs.graph();
  const AllowedDevices allowed(costs);
  if (const auto op = allowed.first_impossible()) return DoesNotFit{*op, Bytes(0)};

  const FavoriteChildren favorites = find_favorite_children(costs, options);
  ClusterState state(costs, allowed, options);
  const IdVector<OpId, bool> suppliers =
      options.call_suppliers ? find_suppliers(costs) : IdVector<OpId, bool>(graph.num_ops());
  const Priority priority = longest_way_first(costs, suppliers);
  PairQueue queue(state, allowed, priority);
  AwakeDevices awake(state, queue, favorites);
  ReadyOps ready(state, suppliers);
  const auto enqueue = [&](std::span<const OpId> ops) {
    for (const OpId op : ops) {
      awake.ready(op);
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
      awake.placed(head->op);
      enqueue(ready.placed(head->op));
      if (state.num_placed() % 1024 == 0) throw_if_cancelled(options.cancel);
    }
  } while (enqueue(ready.rest()));
  if (state.num_placed() < graph.num_ops()) return queue.failure();
  return state.take_plan();
}

}  // namespace baechi
