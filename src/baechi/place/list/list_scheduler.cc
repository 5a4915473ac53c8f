// SPDX-License-Identifier: Apache-2.0
#include "baechi/place/list/list_scheduler.h"

#include <memory>
#include <optional>
#include <span>
#include <utility>

#include "baechi/cost/needed_devices.h"
#include "baechi/place/list/awake_devices.h"
#include "baechi/place/list/cluster_state.h"
#include "baechi/place/list/pair_queue.h"
#include "baechi/place/list/priority.h"
#include "baechi/place/list/ready_ops.h"
#include "baechi/place/list/suppliers.h"

namespace baechi {
namespace {

struct OpFacts {  // that do not depend on how many devices there are of each sort
  IdVector<OpId, bool> suppliers;
  Priority priority;
  const FavoriteChildren* favorites;
};

// Nothing as soon as a device is used that stands for others.
std::optional<PlaceResult> schedule(const CostModel& costs, const AllowedDevices& allowed,
                                    const PlaceOptions& options, const OpFacts& facts,
                                    const std::vector<DeviceId>& stand_ins) {
  const OpGraph& graph = costs.graph();
  ClusterState state(costs, allowed, options);
  state.set_stand_ins(stand_ins);
  PairQueue queue(state, allowed, facts.priority);
  std::optional<AwakeDevices> awake;
  if (facts.favorites != nullptr) awake.emplace(state, queue, *facts.favorites);
  ReadyOps ready(state, facts.suppliers);
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
      if (state.used_stand_in()) return std::nullopt;
      if (state.num_placed() % 1024 == 0) throw_if_cancelled(options.cancel);
    }
  } while (enqueue(ready.rest()));
  if (state.used_stand_in()) return std::nullopt;
  if (state.num_placed() < graph.num_ops()) return queue.failure();
  return state.take_plan();
}

PlaceResult on_whole_cluster(PlaceResult result, const NeededDevices& few,
                             std::size_t num_devices) {
  auto* const placed = std::get_if<PlacedGraph>(&result);
  if (placed == nullptr) return result;
  return few.on_all(std::move(*placed), num_devices);
}

}  // namespace

PlaceResult run_list_scheduler(const CostModel& costs, const AllowedDevices& allowed,
                               const PlaceOptions& options, const FavoriteChildren* favorites) {
  constexpr std::size_t kFirst = 16, kTimes = 4;
  const std::size_t num_devices = costs.cluster().num_devices();
  OpFacts facts{options.call_suppliers ? find_suppliers(costs)
                                       : IdVector<OpId, bool>(costs.graph().num_ops()),
                {},
                favorites};
  facts.priority = longest_way_first(costs, facts.suppliers);
  // Of equal idle devices the first is used first, so that a plan which leaves some of them idle is
  // found on a few. A device that is somebody's home may be used in any order.
  for (std::size_t most = kFirst; options.home == nullptr && most * 2 <= num_devices;
       most *= kTimes) {
    const auto few = NeededDevices::first_of_each_run(costs, most);
    if (few == nullptr) break;
    const AllowedDevices allowed_there(few->costs());
    if (auto found = schedule(few->costs(), allowed_there, options, facts, few->stand_ins()))
      return on_whole_cluster(*std::move(found), *few, num_devices);
  }
  return *schedule(costs, allowed, options, facts, {});
}

}  // namespace baechi
