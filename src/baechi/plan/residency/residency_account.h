// SPDX-License-Identifier: Apache-2.0
// What devices hold while operators run in an order, and about when that is. Private to the choice.
// Beyond the paper.
#pragma once

#include <cstddef>

#include "baechi/base/id.h"
#include "baechi/base/units.h"
#include "baechi/plan/residency/held_over_time.h"
#include "baechi/schedule/schedule.h"

namespace baechi {

class ResidencyAccount {
 public:
  ResidencyAccount(const DeviceOrder& order, const IdVector<OpId, OpSlot>& slots,
                   const IdVector<DeviceId, Bytes>& memory);

  std::size_t position(OpId op) const { return position_[op]; }
  // The first operator of the device that starts at this moment or later.
  std::size_t position_at(DeviceId device, Time at) const;
  std::size_t end(DeviceId device) const { return held_[device].size(); }  // behind that of the end
  Time idle(DeviceId device, std::size_t from, std::size_t to) const;

  // `to` is not included.
  void hold(DeviceId device, std::size_t from, std::size_t to, Bytes bytes) {
    held_[device].add(from, to, bytes);
  }
  void hold_always(DeviceId device, Bytes bytes) { hold(device, 0, end(device), bytes); }
  // In this part of the memory.
  bool fits(DeviceId device, std::size_t from, std::size_t to, Bytes bytes, double part);
  std::size_t start_fitting(DeviceId device, std::size_t from, std::size_t to, Bytes bytes) {
    return held_[device].start_fitting(from, to, bytes, memory_[device]);
  }

 private:
  const DeviceOrder& order_;
  const IdVector<OpId, OpSlot>& slots_;
  const IdVector<DeviceId, Bytes>& memory_;
  IdVector<OpId, std::size_t> position_;
  IdVector<DeviceId, HeldOverTime> held_;  // one position more for the end
};

}  // namespace baechi
