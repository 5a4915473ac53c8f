// SPDX-License-Identifier: Apache-2.0
// The pairs that left the queue because the device had no room (Paper 2.3), and the operators that
// lost all their devices that way.
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

#include "baechi/base/id.h"

namespace baechi {

class DroppedPairs {
 public:
  DroppedPairs(std::size_t num_ops, std::size_t num_devices)
      : num_ops_(num_ops), num_devices_(num_devices) {}

  bool none() const { return dropped_.empty(); }
  bool contains(OpId op, DeviceId device) const { return !none() && dropped_[bit(op, device)]; }
  bool contains_any(OpId op) const {
    if (none()) return false;
    const auto first = dropped_.begin() + static_cast<std::ptrdiff_t>(bit(op, DeviceId(0)));
    return std::find(first, first + static_cast<std::ptrdiff_t>(num_devices_), true) !=
           first + static_cast<std::ptrdiff_t>(num_devices_);
  }
  void insert(OpId op, DeviceId device) {
    if (none()) dropped_.resize(num_ops_ * num_devices_);
    dropped_[bit(op, device)] = true;
  }
  void erase(OpId op, DeviceId device) {
    if (!none()) dropped_[bit(op, device)] = false;
  }

  // Operators that have no pair left, in id order.
  const std::vector<OpId>& stranded() const { return stranded_; }
  void strand(OpId op) {
    const auto at = std::lower_bound(stranded_.begin(), stranded_.end(), op);
    if (at == stranded_.end() || *at != op) stranded_.insert(at, op);
  }
  void unstrand(OpId op) {
    const auto at = std::lower_bound(stranded_.begin(), stranded_.end(), op);
    if (at != stranded_.end() && *at == op) stranded_.erase(at);
  }

 private:
  std::size_t bit(OpId op, DeviceId device) const {
    return op.index() * num_devices_ + device.index();
  }

  std::size_t num_ops_, num_devices_;
  std::vector<bool> dropped_;  // by (op, device); empty until the first
  std::vector<OpId> stranded_;
};

}  // namespace baechi
