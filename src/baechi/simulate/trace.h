// SPDX-License-Identifier: Apache-2.0
// What a replay tells: when everything happens and what memory it takes.
#pragma once

#include <optional>
#include <vector>

#include "baechi/base/cancel.h"
#include "baechi/base/id.h"
#include "baechi/base/units.h"
#include "baechi/cluster/cluster.h"
#include "baechi/schedule/schedule.h"

namespace baechi {

struct MemoryStep {  // from `at` on the device holds `bytes`
  Time at;
  Bytes bytes;

  friend bool operator==(const MemoryStep&, const MemoryStep&) = default;
};

struct DeviceTrace {
  Bytes peak;
  Time peak_at;                     // the first moment of the peak
  std::optional<OpId> peak_op;      // what the device runs at that moment, if anything
  std::optional<Time> overflow_at;  // the first moment at which it holds more than its capacity
  Time busy;                        // computing
  Bytes sent, received;
  std::vector<MemoryStep> memory;  // only when asked for

  friend bool operator==(const DeviceTrace&, const DeviceTrace&) = default;
};

struct Trace {
  Schedule schedule;
  IdVector<DeviceId, DeviceTrace> devices;

  friend bool operator==(const Trace&, const Trace&) = default;
};

// The device that runs out of memory first (by time, then id), if one does.
struct Overflow {
  DeviceId device;
  Bytes over;  // by how much its peak exceeds its capacity
  Time at;     // when it first holds more than its capacity
};
// Requires the cluster that the trace was made on.
std::optional<Overflow> find_overflow(const Trace& trace, const Cluster& cluster);

// By how much the peaks exceed the capacities, summed over the devices; zero when all fits.
Bytes total_excess(const Trace& trace, const Cluster& cluster);

struct SimulateOptions {
  bool record_memory = false;
  const CancelFlag* cancel = nullptr;
};

}  // namespace baechi
