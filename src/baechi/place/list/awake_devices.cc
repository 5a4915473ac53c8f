// SPDX-License-Identifier: Apache-2.0
#include "baechi/place/list/awake_devices.h"

#include <algorithm>

namespace baechi {

void AwakeDevices::placed(OpId op) {
  const DeviceId device = state_.device(op);
  last_[device] = op;
  queue_.release(device);
  if (const auto parent = favorites_.parent[op]) release_from(*parent, op);
  if (const auto group = state_.group(op)) group_decided(*group, device);
}

void AwakeDevices::ready(OpId op) {
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

bool AwakeDevices::waits_for(DeviceId device, OpId favorite) const {
  return queue_.held(device).has_value() && queue_.held(device)->favorite == favorite;
}

void AwakeDevices::release_from(OpId parent, OpId favorite) {
  const DeviceId device = state_.device(parent);
  if (waits_for(device, favorite)) queue_.release(device);
}

void AwakeDevices::group_decided(GroupId group, DeviceId device) {
  for (const DeviceId other : state_.costs().cluster().devices()) {
    const auto& hold = queue_.held(other);
    if (other != device && hold && state_.group(hold->favorite) == group) queue_.release(other);
  }
}

Time AwakeDevices::sending_time(OpId op, OpId child) const {
  const DeviceId from = state_.device(op);
  Time longest;
  for (const Edge& edge : state_.costs().graph().in_edges(child)) {
    if (edge.from != op || !edge.tensor.has_value()) continue;
    for (const DeviceId to : state_.costs().cluster().devices())
      if (to != from) longest = std::max(longest, state_.transfer_times()(*edge.tensor, from, to));
  }
  return longest;
}

}  // namespace baechi
