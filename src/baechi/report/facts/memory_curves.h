// SPDX-License-Identifier: Apache-2.0
// How much every device holds over time, read off a schedule by the rules of
// docs/reference/semantics.md, without a replay.
#pragma once

#include <cstddef>
#include <vector>

#include "baechi/base/id.h"
#include "baechi/base/units.h"
#include "baechi/graph/op_graph.h"
#include "baechi/schedule/schedule.h"

namespace baechi {

struct MemoryPoint {  // from `at` on the device holds `bytes`
  Time at;
  Bytes bytes;

  friend bool operator==(const MemoryPoint&, const MemoryPoint&) = default;
};
using MemoryCurve = std::vector<MemoryPoint>;

// The memory curve of every device as docs/reference/semantics.md defines it. O(events log events).
IdVector<DeviceId, MemoryCurve> memory_curves(const OpGraph& graph, const Schedule& schedule,
                                              std::size_t num_devices);

// The highest point, the first of equals.
MemoryPoint highest(const MemoryCurve& curve);

// At most about `points` points of a curve: the highest amount of each of as many equal parts of
// the step. No peak is lost.
MemoryCurve thinned(const MemoryCurve& curve, Time makespan, std::size_t points);

}  // namespace baechi
