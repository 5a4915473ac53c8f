// SPDX-License-Identifier: Apache-2.0
// Where an operator may go when its whole colocation group has to go with it.
// Paper 3.1.1.
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "baechi/base/id.h"
#include "baechi/cost/cost_model.h"

namespace baechi {

// Immutable; refers to the costs, which must outlive it. O(members of groups * devices) to make.
class AllowedDevices {
 public:
  explicit AllowedDevices(const CostModel& costs);

  // The device has a compute time for `op` and for the rest of its group, and no pin forbids it.
  bool operator()(OpId op, DeviceId device) const {
    if (everywhere_) return true;
    const std::optional<GroupId> group = costs_->graph()[op].group;
    if (!group.has_value()) return costs_->may_run(op, device);
    return group_allowed_[group->index() * num_devices_ + device.index()] != 0;
  }
  // Every operator may go to every device.
  bool everywhere() const { return everywhere_; }

  // The first operator, in topological order, that may go nowhere.
  std::optional<OpId> first_impossible() const;

 private:
  const CostModel* costs_;
  std::size_t num_devices_;
  bool everywhere_;
  std::vector<unsigned char> group_allowed_;  // row-major by (group, device)
};

}  // namespace baechi
