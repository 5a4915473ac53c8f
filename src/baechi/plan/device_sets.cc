// SPDX-License-Identifier: Apache-2.0
#include "baechi/plan/device_sets.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace baechi {

DeviceSetId DeviceSets::allowed(const CostModel& costs, OpId op) {
  scratch_.clear();
  for (const DeviceId device : costs.cluster().devices())
    if (costs.may_run(op, device)) scratch_.push_back(device);
  return intern(scratch_);
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
  if (sets_.contains(last_) && sets_[last_] == devices) return last_;
  const auto [at, added] = ids_.emplace(devices, DeviceSetId(sets_.size()));
  if (added) sets_.push_back(devices);
  return last_ = at->second;
}

}  // namespace baechi
