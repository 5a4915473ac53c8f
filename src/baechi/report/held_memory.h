// SPDX-License-Identifier: Apache-2.0
// What every device holds when, read off a schedule by the rules of docs/semantics.md: for pictures
// and tables, without a replay.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "baechi/base/id.h"
#include "baechi/base/units.h"
#include "baechi/graph/op_graph.h"
#include "baechi/schedule/schedule.h"

namespace baechi {

enum class MemoryPart : std::uint8_t { kPermanent, kTemporary, kOutput, kCopy };
inline constexpr std::size_t kNumMemoryParts = 4;

// `bytes` of `op` (for kCopy: of the operator that made the tensor) on `device` during
// [start, end); when start == end, at that moment.
struct Held {
  DeviceId device{0};
  MemoryPart part = MemoryPart::kPermanent;
  OpId op{0};
  std::optional<TensorId> tensor;  // kOutput, kCopy
  Bytes bytes;
  Time start, end;
};

// Everything but what takes no bytes, sorted by device, then start. Permanent memory is held from
// 0 to the makespan.
std::vector<Held> held_memory(const OpGraph& graph, const Schedule& schedule);

struct MemoryPoint {  // from `at` on the device holds `bytes`
  Time at;
  Bytes bytes;

  friend bool operator==(const MemoryPoint&, const MemoryPoint&) = default;
};

// The memory curve of every device as docs/semantics.md defines it.
IdVector<DeviceId, std::vector<MemoryPoint>> memory_curves(const std::vector<Held>& held,
                                                           std::size_t num_devices);

// At most about `points` points of a curve: the highest amount of each of as many equal parts of
// the step. No peak is lost.
std::vector<MemoryPoint> thinned(const std::vector<MemoryPoint>& curve, Time makespan,
                                 std::size_t points);

}  // namespace baechi
