// SPDX-License-Identifier: Apache-2.0
#include "baechi/plan/fit/device_sets.h"

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <utility>

namespace baechi {

DeviceSetId DeviceSets::allowed(const CostModel& costs, OpId op) {
  Asked asked{.pin = costs.pin(op), .runs_on = {}};
  for (std::size_t c = 0; c < costs.num_classes(); ++c)
    asked.runs_on.push_back(costs.class_times(DeviceClassId(c))[op].has_value() ? 1 : 0);
  const auto [at, added] = allowed_.emplace(std::move(asked), DeviceSetId(0));
  if (added) {
    scratch_.clear();
    for (const DeviceId device : costs.cluster().devices())
      if (costs.may_run(op, device)) scratch_.push_back(device);
    at->second = intern(scratch_);
  }
  return at->second;
}

DeviceSetId DeviceSets::intersection(DeviceSetId a, DeviceSetId b) {
  if (a == b) return a;
  const auto [at, added] = intersections_.emplace(std::minmax(a, b), a);
  if (added) {
    scratch_.clear();
    std::set_intersection(sets_[a].begin(), sets_[a].end(), sets_[b].begin(), sets_[b].end(),
                          std::back_inserter(scratch_));
    at->second = intern(scratch_);
  }
  return at->second;
}

DeviceSetId DeviceSets::intern(const std::vector<DeviceId>& devices) {
  const auto [at, added] = ids_.emplace(devices, DeviceSetId(sets_.size()));
  if (added) sets_.push_back(devices);
  return at->second;
}

}  // namespace baechi
