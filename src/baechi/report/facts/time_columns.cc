// SPDX-License-Identifier: Apache-2.0
#include "baechi/report/facts/time_columns.h"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "baechi/base/assert.h"
#include "baechi/report/facts/memory_curves.h"

namespace baechi {
namespace {

// Shares [start, end) out to the columns it touches.
void add_interval(std::vector<Time>& columns, Time width, Time start, Time end) {
  for (std::int64_t c = start.count() / width.count(); start < end; ++c) {
    const auto column = static_cast<std::size_t>(c);
    if (column >= columns.size()) return;
    const Time until = std::min(end, width * (c + 1));
    columns[column] += until - start;
    start = until;
  }
}

// The operator with the most time in each column, the first of equals.
class Longest {
 public:
  explicit Longest(std::size_t columns) : ops_(columns), times_(columns) {}

  void add(OpId op, Time width, Time start, Time end) {
    for (std::int64_t c = start.count() / width.count(); start < end; ++c) {
      const auto column = static_cast<std::size_t>(c);
      if (column >= ops_.size()) return;
      const Time until = std::min(end, width * (c + 1));
      if (until - start > times_[column]) {
        times_[column] = until - start;
        ops_[column] = op;
      }
      start = until;
    }
  }
  std::vector<std::optional<OpId>> take() { return std::move(ops_); }

 private:
  std::vector<std::optional<OpId>> ops_;
  std::vector<Time> times_;
};

std::vector<Bytes> memory_of(const MemoryCurve& curve, Time width, std::size_t columns) {
  std::vector<Bytes> result(columns);
  std::size_t next = 0;
  Bytes held = curve.front().bytes;
  for (std::size_t c = 0; c < columns; ++c) {
    const Time end = width * static_cast<std::int64_t>(c + 1);
    result[c] = held;
    for (; next < curve.size() && curve[next].at < end; ++next) {
      held = curve[next].bytes;
      result[c] = std::max(result[c], held);
    }
  }
  return result;
}

}  // namespace

TimeColumns time_columns(const OpGraph& graph, const Plan& plan, std::size_t columns) {
  BAECHI_ASSERT(columns > 0, "a picture has columns");
  const std::size_t num_devices = plan.cluster.devices.size();
  const auto count = static_cast<std::int64_t>(columns);
  TimeColumns result;
  // The makespan itself is a moment of the last column.
  result.width = Time(plan.makespan().count() / count + 1);
  const auto curves = memory_curves(graph, plan.schedule, num_devices);
  for (const MemoryCurve& curve : curves)
    result.devices.push_back({std::vector<Time>(columns),
                              std::vector<Time>(columns),
                              memory_of(curve, result.width, columns),
                              {}});
  IdVector<DeviceId, Longest> longest(num_devices, Longest(columns));
  for (const OpId op : graph.ops()) {
    const OpSlot& slot = plan.schedule.slots[op];
    add_interval(result.devices[slot.device].computing, result.width, slot.start, slot.end);
    longest[slot.device].add(op, result.width, slot.start, slot.end);
  }
  for (const DeviceId device : longest.keys())
    result.devices[device].longest = longest[device].take();
  for (const Transfer& transfer : plan.schedule.transfers) {
    add_interval(result.devices[transfer.from].moving, result.width, transfer.start, transfer.end);
    add_interval(result.devices[transfer.to].moving, result.width, transfer.start, transfer.end);
  }
  return result;
}

}  // namespace baechi
