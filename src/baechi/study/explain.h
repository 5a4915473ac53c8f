// SPDX-License-Identifier: Apache-2.0
// Why a plan takes as long as it does, who holds the memory, and why an operator is where it is.
// Beyond the paper.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "baechi/base/cancel.h"
#include "baechi/base/id.h"
#include "baechi/base/units.h"
#include "baechi/cost/cost_model.h"
#include "baechi/graph/unroll.h"
#include "baechi/schedule/plan.h"
#include "baechi/simulate/critical_path.h"
#include "baechi/simulate/held_memory.h"
#include "baechi/study/fetch_facts.h"
#include "baechi/study/second_run_facts.h"

namespace baechi {

// What would have to shrink for the step to shrink.
enum class Bottleneck : std::uint8_t {
  kDeviceLoad,     // a device that computes nearly all the time
  kSharedDevices,  // most of the critical path is waiting for devices that compute something else
  kCommunication,  // most of the critical path is transfers and waiting for them
  kDependencies,   // most of it is operators that need each other's results
};

// An operator, or a colocation group by its first member, that holds memory at a device's peak.
struct MemoryHolder {
  OpId op{0};
  std::size_t num_ops = 1;  // of the group that hold some
  Bytes permanent = {}, temporary = {}, outputs = {}, copies = {};

  Bytes total() const { return permanent + temporary + outputs + copies; }
  friend bool operator==(const MemoryHolder&, const MemoryHolder&) = default;
};

struct DevicePeak {
  Bytes permanent = {}, temporary = {}, outputs = {}, copies = {};  // add up to the peak
  std::vector<MemoryHolder> holders;                                // all, the largest first
};

struct PlanExplanation {
  CriticalPath path;
  std::vector<CriticalSegment> segments;  // of the path
  Bottleneck bottleneck = Bottleneck::kDependencies;
  std::optional<DeviceId> busiest;  // the device that computes the longest
  std::vector<DeviceId> full;       // devices whose peak leaves less than a twentieth free
  IdVector<DeviceId, DevicePeak> peaks;
  std::vector<SecondRunFacts> second_runs;  // what saves most first
  HostFacts host;
};

// Requires a plan of this step on this cluster with the simulator's devices. Throws InputError for
// a schedule that is not one of the simulator's.
PlanExplanation explain_plan(const StepGraph& step, const Cluster& cluster, const Plan& plan);

// One device that an operator might be on.
struct Alternative {
  DeviceId device{0};
  std::string obstacle;  // why it, or its group, cannot run there; the rest is empty then

  // Of the operator itself, all others staying as they are and queues being free: when its inputs
  // would be there, and the first time that the device has long enough a gap.
  Time inputs = {}, start = {}, finish = {};

  // Of a replay with the operator and its group on this device, in the executor's order; where that
  // is the plan's, the better one of it and first come, first served.
  Time makespan = {};
  Bytes peak = {};                         // of this device
  std::optional<DeviceId> runs_over = {};  // the first device that runs out of memory
  Bytes over = {};                         // by how much
};

struct OperatorExplanation {
  OpId op{0};
  std::vector<OpId> moves_along;  // the others of its colocation group
  DeviceId device{0};
  Time start = {}, end = {}, ready = {};         // ready: its inputs are there
  bool critical = false;                         // on the plan's critical path
  IdVector<DeviceId, Alternative> alternatives;  // one per device, the plan's own included
};

OperatorExplanation explain_operator(const CostModel& costs, const Plan& plan, OpId op,
                                     const CancelFlag* cancel);

}  // namespace baechi
