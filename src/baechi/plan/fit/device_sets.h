// SPDX-License-Identifier: Apache-2.0
// Sets of devices, each kept once: a million operators mostly may run on one of a few of them.
#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "baechi/base/id.h"
#include "baechi/cost/cost_model.h"

namespace baechi {

using DeviceSetId = Id<struct DeviceSetTag>;

class DeviceSets {
 public:
  // The devices that may run `op`. All calls are of the same costs.
  DeviceSetId allowed(const CostModel& costs, OpId op);
  DeviceSetId intersection(DeviceSetId a, DeviceSetId b);

  // Ascending; stays where it is as sets are added.
  std::span<const DeviceId> operator[](DeviceSetId set) const { return sets_[set]; }

 private:
  struct Asked {  // what an operator's devices depend on
    std::optional<DeviceId> pin;
    std::vector<std::uint8_t> runs_on;  // by class of devices

    friend auto operator<=>(const Asked&, const Asked&) = default;
  };

  DeviceSetId intern(const std::vector<DeviceId>& devices);

  IdVector<DeviceSetId, std::vector<DeviceId>> sets_;
  std::map<std::vector<DeviceId>, DeviceSetId> ids_;
  std::map<std::pair<DeviceSetId, DeviceSetId>, DeviceSetId> intersections_;
  std::map<Asked, DeviceSetId> allowed_;
  std::vector<DeviceId> scratch_;
};

}  // namespace baechi
