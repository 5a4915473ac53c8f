// SPDX-License-Identifier: Apache-2.0
#include "baechi/report/facts/timeline_bars.h"

#include <algorithm>

namespace baechi {
namespace {

using Bars = IdVector<DeviceId, std::vector<TimelineBar>>;

// Operators shorter than `grain` share a bar as long as it stays within one grain.
Bars bars_of_grain(const Schedule& schedule, const DeviceOrder& order, Time grain) {
  Bars bars(order.size());
  for (const DeviceId device : order.keys()) {
    bool open = false;  // the last bar takes more
    Time longest;
    for (const OpId op : order[device]) {
      const OpSlot& slot = schedule.slots[op];
      const Time time = slot.end - slot.start;
      std::vector<TimelineBar>& row = bars[device];
      const bool small = time < grain;
      if (open && small && slot.end - row.back().start < grain) {
        TimelineBar& bar = row.back();
        if (time > longest) bar.op = op;
        longest = std::max(longest, time);
        ++bar.count;
        bar.end = std::max(bar.end, slot.end);
        bar.busy += time;
      } else {
        row.push_back({op, 1, slot.start, slot.end, time});
        longest = time;
      }
      open = small;
    }
  }
  return bars;
}

std::size_t count_of(const Bars& bars) {
  std::size_t count = 0;
  for (const auto& row : bars) count += row.size();
  return count;
}

}  // namespace

Bars timeline_bars(const Schedule& schedule, const DeviceOrder& order, std::size_t max_bars) {
  Bars bars = bars_of_grain(schedule, order, Time(0));
  for (std::int64_t part = std::int64_t{1} << 20; count_of(bars) > max_bars && part >= 16;
       part /= 2)
    bars = bars_of_grain(schedule, order, Time(schedule.makespan.count() / part + 1));
  return bars;
}

std::vector<std::size_t> longest_transfers(const Schedule& schedule, std::size_t max_transfers) {
  std::vector<std::size_t> chosen;
  for (std::size_t i = 0; i < schedule.transfers.size(); ++i) chosen.push_back(i);
  if (chosen.size() <= max_transfers) return chosen;
  const auto time = [&](std::size_t i) {
    return schedule.transfers[i].end - schedule.transfers[i].start;
  };
  std::sort(chosen.begin(), chosen.end(), [&](std::size_t a, std::size_t b) {
    return time(a) != time(b) ? time(a) > time(b) : a < b;
  });
  chosen.resize(max_transfers);
  std::sort(chosen.begin(), chosen.end());
  return chosen;
}

}  // namespace baechi
