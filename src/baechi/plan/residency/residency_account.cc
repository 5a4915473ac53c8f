// SPDX-License-Identifier: Apache-2.0
#include "baechi/plan/residency/residency_account.h"

#include <algorithm>
#include <cstdint>

namespace baechi {

ResidencyAccount::ResidencyAccount(const DeviceOrder& order, const IdVector<OpId, OpSlot>& slots,
                                   const IdVector<DeviceId, Bytes>& memory)
    : order_(order), slots_(slots), memory_(memory), position_(slots.size()) {
  for (const std::vector<OpId>& ops : order) {
    held_.push_back(HeldOverTime(ops.size() + 1));
    for (std::size_t i = 0; i < ops.size(); ++i) position_[ops[i]] = i;
  }
}

std::size_t ResidencyAccount::position_at(DeviceId device, Time at) const {
  const auto& order = order_[device];
  return static_cast<std::size_t>(
      std::ranges::partition_point(order, [&](OpId op) { return slots_[op].start < at; }) -
      order.begin());
}

Time ResidencyAccount::idle(DeviceId device, std::size_t from, std::size_t to) const {
  const auto& order = order_[device];
  const Time begin = slots_[order[from]].end, end = slots_[order[to]].start;
  return std::max(end - begin, Time(0));
}

bool ResidencyAccount::fits(DeviceId device, std::size_t from, std::size_t to, Bytes bytes,
                            double part) {
  const double limit = static_cast<double>(memory_[device].count()) * part;
  return held_[device].fits(from, to, bytes, Bytes(static_cast<std::int64_t>(limit)));
}

}  // namespace baechi
