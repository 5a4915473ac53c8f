// SPDX-License-Identifier: Apache-2.0
#include "baechi/place/list/ready_ops.h"

#include <algorithm>
#include <optional>
#include <utility>

namespace baechi {

ReadyOps::ReadyOps(ClusterState& state, IdVector<OpId, bool> suppliers)
    : state_(state),
      graph_(state.costs().graph()),
      supplier_(std::move(suppliers)),
      called_(graph_.num_ops()),
      has_called_(graph_.num_ops()),
      unplaced_(graph_.num_ops()),
      calls_(graph_.num_ops()),
      expected_(state.num_devices()) {
  for (const OpId op : graph_.ops()) {
    unplaced_[op].parents = static_cast<std::uint32_t>(graph_.in_edges(op).size());
    for (const Edge& edge : graph_.in_edges(op))
      if (!supplier_[edge.from]) ++unplaced_[op].lacking;
  }
}

std::span<const OpId> ReadyOps::start() {
  ready_.clear();
  for (const OpId op : graph_.topological_order())
    if (!supplier_[op] && unplaced_[op].lacking == 0) lacks_only_suppliers(op);
  return ready_;
}

std::span<const OpId> ReadyOps::placed(OpId op) {
  ready_.clear();
  if (has_called_[op]) expected_[calls_[op].device] -= calls_[op].work;
  for (const Edge& edge : graph_.out_edges(op)) {
    Unplaced& unplaced = unplaced_[edge.to];
    --unplaced.parents;
    if (!supplier_[op]) --unplaced.lacking;
    if (unplaced.lacking == 0) lacks_only_suppliers(edge.to);
  }
  return ready_;
}

std::span<const OpId> ReadyOps::rest() {
  ready_.clear();
  for (const OpId op : graph_.topological_order()) {
    if (!supplier_[op] || called_[op]) continue;
    called_[op] = true;
    if (unplaced_[op].parents == 0) ready_.push_back(op);
  }
  return ready_;
}

void ReadyOps::lacks_only_suppliers(OpId op) {
  called_[op] = true;
  if (unplaced_[op].parents == 0) return ready_.push_back(op);
  if (has_called_[op]) return;
  has_called_[op] = true;
  Call& call = calls_[op];
  call.device = best_device(op);
  state_.use(call.device);
  call.work = *state_.costs().compute_time(op, call.device);
  call_parents(op, call.device, call.work);
  expected_[call.device] += call.work;
}

void ReadyOps::call_parents(OpId op, DeviceId device, Time& work) {
  callers_ = {op};
  while (!callers_.empty()) {
    const OpId caller = callers_.back();
    callers_.pop_back();
    for (const Edge& edge : graph_.in_edges(caller)) {
      const OpId parent = edge.from;
      if (!supplier_[parent] || state_.placed(parent)) continue;
      const bool first_call = !called_[parent];
      called_[parent] = has_called_[parent] = true;
      const bool sent = !state_.decided(parent) && state_.may_go(parent, device);
      if (sent) {
        state_.designate(parent, device);
        work += *state_.costs().compute_time(parent, device);
      }
      if (unplaced_[parent].parents > 0) {
        if (first_call || sent) callers_.push_back(parent);
      } else if (first_call || sent) {
        ready_.push_back(parent);
      }
    }
  }
}

// Where it would finish first, were its suppliers there. Calls that are still to be answered count,
// or all that begin together would crowd onto one device.
DeviceId ReadyOps::best_device(OpId op) const {
  std::optional<std::pair<Time, DeviceId>> best;
  for (const DeviceId device : expected_.keys()) {
    if (!state_.may_go(op, device)) continue;
    const Time start =
        std::max(state_.free(device) + expected_[device], state_.arrival(op, device).ready);
    const std::pair finish(start + *state_.costs().compute_time(op, device), device);
    best = std::min(best.value_or(finish), finish);
  }
  return best->second;
}

}  // namespace baechi
