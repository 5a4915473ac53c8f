// SPDX-License-Identifier: Apache-2.0
// What a placer believes its devices hold while it decides (Paper 2.1: M, the memory of a device).
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <queue>
#include <vector>

#include "baechi/base/id.h"
#include "baechi/base/units.h"
#include "baechi/cost/cost_model.h"
#include "baechi/place/placer.h"

namespace baechi {

// With MemoryPolicy::kLive: the permanent memory of what is placed and of the groups it belongs to,
// plus the tensors and copies alive at the moment of the decision. With kReserve: everything ever
// put on the device, so that what it accepts fits under any schedule.
class BelievedMemory {
 public:
  BelievedMemory(const CostModel& costs, MemoryPolicy policy, double headroom);

  // Even all operators and all tensors at once fit on every device: nothing needs an account.
  bool ample() const { return ample_; }

  // By how much `op` would overrun the device now, `copies` being what it receives; fits when not
  // positive. `opens_group`: it would bring its colocation group to the device. `by_choice`: it
  // could go elsewhere, and must leave the headroom free.
  struct Asking {
    OpId op;
    DeviceId device;
    Bytes copies;
    bool opens_group, by_choice;
  };
  Bytes overrun(const Asking& asking) const;

  void take(OpId op, DeviceId device, bool opens_group);
  void add_copy(DeviceId device, Bytes size) { used_[device] += size; }
  // Remembers that `bytes` will be free from `at` on. Ignored by kReserve.
  void free_later(DeviceId device, Time at, Bytes bytes);
  // What advance() would let go of.
  Bytes free_by(DeviceId device, Time now) const;
  // Lets go of everything that is free by `now`.
  void advance(DeviceId device, Time now);

  // The next moment at which some device gets memory back.
  std::optional<Time> next_free() const;
  // Grows whenever some device, or this one, has got memory back.
  std::uint64_t num_frees() const { return num_frees_; }
  std::uint64_t num_frees(DeviceId device) const { return frees_of_[device]; }

 private:
  struct Free {
    Time at;
    Bytes bytes;
    friend bool operator>(const Free& a, const Free& b) { return a.at > b.at; }
  };
  struct Frees : std::priority_queue<Free, std::vector<Free>, std::greater<>> {
    const std::vector<Free>& all() const { return c; }
  };
  struct GroupNeed {
    Bytes permanent, outputs;
    Bytes largest_step;  // of temporary and output memory of one member
    Bytes temporary;     // the largest
  };

  const CostModel* costs_;
  MemoryPolicy policy_;
  bool ample_;
  IdVector<GroupId, GroupNeed> groups_;
  IdVector<OpId, Bytes> outputs_;
  IdVector<DeviceId, Bytes> used_;
  IdVector<DeviceId, Bytes> headroom_;
  IdVector<DeviceId, Bytes> temporary_;  // kReserve: the largest of what is placed
  IdVector<DeviceId, Frees> frees_;
  std::uint64_t num_frees_ = 0;
  IdVector<DeviceId, std::uint64_t> frees_of_;
};

}  // namespace baechi
