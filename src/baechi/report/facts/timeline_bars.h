// SPDX-License-Identifier: Apache-2.0
// What a timeline draws: one bar per operator, or fewer when there are more operators than a page
// can hold.
#pragma once

#include <cstddef>
#include <vector>

#include "baechi/base/id.h"
#include "baechi/base/units.h"
#include "baechi/schedule/schedule.h"

namespace baechi {

// Operators that follow each other on a device. `op` is the longest of them, the first of equals.
struct TimelineBar {
  OpId op{0};
  std::size_t count = 1;
  Time start, end;
  Time busy;  // the sum of their times; less than end - start when the device waits in between
};

// Every operator in exactly one bar, in order. At most `max_bars` in all when that can be: short
// operators beside each other then share bars, the fewer the longer they are.
IdVector<DeviceId, std::vector<TimelineBar>> timeline_bars(const Schedule& schedule,
                                                           const DeviceOrder& order,
                                                           std::size_t max_bars);

// The indices of the `max_transfers` longest transfers (ties: the first), in order.
std::vector<std::size_t> longest_transfers(const Schedule& schedule, std::size_t max_transfers);

}  // namespace baechi
