// SPDX-License-Identifier: Apache-2.0
// Who holds a device's memory at a moment of a schedule (docs/reference/semantics.md, "Memory at a
// moment"). Beyond the paper.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "baechi/base/id.h"
#include "baechi/base/units.h"
#include "baechi/graph/op_graph.h"
#include "baechi/schedule/schedule.h"

namespace baechi {

enum class MemoryUse : std::uint8_t {
  kPermanent,  // of an operator that the device runs at some time
  kTemporary,  // of the operator that is running
  kOutput,     // a tensor on its producer's device
  kCopy,       // a tensor that was, or is being, received
};

struct HeldMemory {
  OpId op;  // whose permanent or temporary memory, or the producer of the tensor
  MemoryUse use;
  Bytes bytes;  // more than none

  friend bool operator==(const HeldMemory&, const HeldMemory&) = default;
};

// When the last consumer of `tensor` on `device` has finished; absent when none runs there.
std::optional<Time> last_local_use(const OpGraph& graph, const Schedule& schedule, TensorId tensor,
                                   DeviceId device);

// For every device, what it holds at its moment, by operator; at the moment of the device's peak
// the bytes add up to the peak. O(ops + edges + transfers log consumers).
IdVector<DeviceId, std::vector<HeldMemory>> held_memory(const OpGraph& graph,
                                                        const Schedule& schedule,
                                                        const IdVector<DeviceId, Time>& moments);

}  // namespace baechi
