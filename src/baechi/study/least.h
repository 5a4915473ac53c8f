// SPDX-License-Identifier: Apache-2.0
// The fewest devices, and the least memory per device, that a method makes a plan for. Beyond the
// paper.
#pragma once

#include <cstddef>
#include <optional>

#include "baechi/base/units.h"
#include "baechi/cluster/cluster.h"
#include "baechi/graph/op_graph.h"
#include "baechi/plan/request/request.h"
#include "baechi/plan/steps/sizes.h"

namespace baechi {

struct LeastMemory {
  Bytes capacity;          // equal on all devices; no device of `plan` peaks higher
  Bytes impossible_below;  // proved: no placement at all fits with less than this
  Plan plan;               // verified, on the cluster with that capacity
};

struct FewestDevices {
  std::size_t count = 0;             // those with the most memory come first
  std::size_t impossible_up_to = 0;  // proved: no placement fits so many, or fewer
  Plan plan;                         // verified, on these devices
};

// Bisects to a thousandth of the answer, or a byte. A heuristic may fit less memory than it failed
// with: the answer is what was found, also when the request's flag stops the search (Cancelled if
// nothing was found by then). Nothing when the operators cannot run there whatever the memory.
std::optional<LeastMemory> least_memory(const GraphSizes& sizes, const ClusterSpec& cluster,
                                        const StepRequest& request);

// Tries one device, two, ... up to the cluster's own, and then more like the smallest up to
// `max_devices`. Pins to a device that is left out rule a number out; times or memory that overflow
// with so many do not, they only leave it without a plan. Throws InputError for more than
// kMostTriedDevices.
std::optional<FewestDevices> fewest_devices(const GraphSizes& sizes, const ClusterSpec& cluster,
                                            std::size_t max_devices, const StepRequest& request);

}  // namespace baechi
