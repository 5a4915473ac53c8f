// SPDX-License-Identifier: Apache-2.0
// Why the devices of a pipeline stand idle: every moment at which a device runs nothing has exactly
// one cause (docs/explanation/pipelines.md, "Why devices are idle"). Beyond the paper.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "baechi/base/id.h"
#include "baechi/base/units.h"
#include "baechi/cluster/cluster.h"
#include "baechi/graph/unroll.h"
#include "baechi/report/facts/memory_curves.h"
#include "baechi/report/facts/waits.h"
#include "baechi/schedule/schedule.h"

namespace baechi {

enum class BubbleCause : std::uint8_t {
  kFill,       // the first micro-batch is still on its way to the device, or back to it
  kDrain,      // the last micro-batch is on its way back, or has left
  kImbalance,  // what it runs next is being computed elsewhere
  kTransfers,  // ... is on its way, or waits for its turn in a queue; or it sends, and that blocks
  kMemory,     // something else is ready, but there is no room for it
};
inline constexpr std::array<std::string_view, 5> kBubbleCauses{"fill", "drain", "imbalance",
                                                               "transfers", "memory"};

struct Bubble {
  Time start, end;
  BubbleCause cause;

  friend bool operator==(const Bubble&, const Bubble&) = default;
};

struct DeviceBubbles {
  std::vector<Bubble> bubbles;  // in the order of time; they do not overlap, none is empty
  std::array<Time, kBubbleCauses.size()> total = {};  // by cause; what the step takes beyond what
                                                      // the device computes
  Time of(BubbleCause cause) const { return total[static_cast<std::size_t>(cause)]; }
  Time idle() const;
};

// For a schedule of the simulator's of a step of several micro-batches. O(devices x operators of a
// micro-batch + operators log operators).
IdVector<DeviceId, DeviceBubbles> find_bubbles(const StepGraph& step, const Cluster& cluster,
                                               const Schedule& schedule, const DeviceOrder& order,
                                               const Waits& waits,
                                               const IdVector<DeviceId, MemoryCurve>& curves);
IdVector<DeviceId, DeviceBubbles> find_bubbles(const StepGraph& step, const Cluster& cluster,
                                               const Schedule& schedule);

}  // namespace baechi
