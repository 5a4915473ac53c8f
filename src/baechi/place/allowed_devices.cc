// SPDX-License-Identifier: Apache-2.0
#include "baechi/place/allowed_devices.h"

#include <algorithm>

namespace baechi {
namespace {

bool every_operator_runs_everywhere(const CostModel& costs) {
  if (costs.has_pins()) return false;
  for (std::size_t c = 0; c < costs.num_classes(); ++c)
    for (const std::optional<Time>& time : costs.class_times(DeviceClassId(c)))
      if (!time.has_value()) return false;
  return true;
}

}  // namespace

AllowedDevices::AllowedDevices(const CostModel& costs)
    : costs_(&costs),
      num_devices_(costs.cluster().num_devices()),
      everywhere_(every_operator_runs_everywhere(costs)) {
  if (everywhere_) return;
  group_allowed_.resize(costs.graph().num_groups() * num_devices_);
  for (const GroupId group : costs.graph().groups())
    for (const DeviceId device : costs.cluster().devices())
      group_allowed_[group.index() * num_devices_ + device.index()] =
          costs.group_may_run(group, device) ? 1 : 0;
}

std::optional<OpId> AllowedDevices::first_impossible() const {
  if (everywhere_) return std::nullopt;
  const IdRange<DeviceId> devices = costs_->cluster().devices();
  for (const OpId op : costs_->graph().topological_order())
    if (std::none_of(devices.begin(), devices.end(),
                     [&](DeviceId device) { return (*this)(op, device); }))
      return op;
  return std::nullopt;
}

}  // namespace baechi
