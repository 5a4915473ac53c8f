// SPDX-License-Identifier: Apache-2.0
// Why operators start when they do and not earlier, read off a schedule: the input that came last,
// and what every device's idle time went into.
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "baechi/base/id.h"
#include "baechi/base/units.h"
#include "baechi/graph/op_graph.h"
#include "baechi/schedule/schedule.h"

namespace baechi {

// The last of an operator's inputs to be there. Among several of one moment one that was sent, then
// the one with the smallest id. Operators without inputs are ready at 0.
struct LastInput {
  Time ready;
  std::optional<OpId> op;               // whose output, or whose end, it is
  std::optional<std::size_t> transfer;  // that brought it: its index in the schedule
};

// What a device did not compute for. The parts and its busy time add up to the step.
struct IdleTime {
  Time elsewhere;  // its next input was still being computed on another device
  Time queued;     // ... was waiting for its turn in the queues
  Time moving;     // ... was on its way
  Time other;      // nothing was missing but the schedule starts later (or breaks the rules)
  Time after;      // it had nothing left to do

  friend bool operator==(const IdleTime&, const IdleTime&) = default;
};

struct Waits {
  IdVector<OpId, LastInput> last_input;
  IdVector<DeviceId, IdleTime> idle;
};

Waits find_waits(const OpGraph& graph, const Schedule& schedule, const DeviceOrder& order);

}  // namespace baechi
