// SPDX-License-Identifier: Apache-2.0
// A cluster that differs in one thing: what "one more device" or "half the memory" means. Beyond
// the paper.
#pragma once

#include <cstddef>
#include <string>

#include "baechi/base/units.h"
#include "baechi/cluster/cluster.h"
#include "baechi/graph/op_graph.h"

namespace baechi {

// A factor in parts per million, as speeds are: exact in decimal.
using Factor = Speed;

// More devices than this are refused: link tables grow with the square.
inline constexpr std::size_t kMostTriedDevices = 1024;
// Throws InputError for a number of devices that no study tries: none, or too many.
void check_tried_devices(std::size_t count);

// One more device like `spec.devices[like]`, with a name of its own; link rules that name that
// device hold for the new one as well.
ClusterSpec with_device_like(ClusterSpec spec, std::size_t like);
// Without `spec.devices[at]` and the link rules that name it.
ClusterSpec without_device(ClusterSpec spec, std::size_t at);
// The first `count` devices, or all and then more like the last. Requires count > 0.
ClusterSpec with_devices(ClusterSpec spec, std::size_t count);
// The devices with the most memory first (ties as they were).
ClusterSpec largest_first(ClusterSpec spec);

ClusterSpec with_memory(ClusterSpec spec, Bytes capacity);  // equal on all devices
ClusterSpec with_memory(ClusterSpec spec, Factor factor);   // rounded down, at least one byte
ClusterSpec with_speed(ClusterSpec spec, Factor factor);    // rounded down, at least a millionth

// An operator is pinned to a device that is not there: a proof that no plan exists.
bool lacks_pinned_device(const OpGraph& graph, const ClusterSpec& spec);

// Between any two devices of one host that both compute; links between hosts, and those of CPUs
// beside other devices, stay as they are.
ClusterSpec with_link(ClusterSpec spec, Time latency, Bandwidth bandwidth);

}  // namespace baechi
