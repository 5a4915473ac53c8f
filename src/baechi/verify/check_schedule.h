// SPDX-License-Identifier: Apache-2.0
// The independent verifier: re-derives every rule of a timed plan from the graph and the cluster
// alone. It shares no code with place/ or simulate/, on purpose.
#pragma once

#include <string>
#include <vector>

#include "baechi/base/id.h"
#include "baechi/base/units.h"
#include "baechi/cluster/cluster.h"
#include "baechi/graph/op_graph.h"
#include "baechi/schedule/execution_order.h"
#include "baechi/schedule/schedule.h"
#include "baechi/verify/recounted_memory.h"

namespace baechi {

struct CheckOptions {
  bool capacities = true;  // off: only the timing rules, for what-if questions
  ExecutionOrder order = ExecutionOrder::kPlanned;  // that the executor has
  std::size_t max_violations = 20;                  // stop after so many
};

// One sentence per broken rule, with the names of the operators and devices; empty when the plan
// is right: slots and transfers complete and consistent with the costs, inputs there before their
// operator starts, no overlap on a device, queue or channel, queues first come first served, every
// tensor sent exactly once to every device that reads it, pins and colocation kept, makespan as
// claimed; when all that holds, devices in the executor's order; and then, memory within every capacity at every moment.
std::vector<std::string> check_schedule(const OpGraph& graph, const Cluster& cluster,
                                        const Schedule& schedule, const CheckOptions& = {});

// The memory peak of every device, by the verifier's own account. Requires a schedule without
// violations of the timing rules.
IdVector<DeviceId, HeldMost> checked_peaks(const OpGraph& graph, const Cluster& cluster,
                                           const Schedule& schedule);

}  // namespace baechi
