// SPDX-License-Identifier: Apache-2.0
// Starts for the dnn-partitioning objectives: a dynamic program that cuts an order of the groups
// into one segment per accelerator. Beyond the paper. Internal to place/.
#pragma once

#include <optional>
#include <vector>

#include "baechi/dnn_partitioning/dnnp_instance.h"

namespace baechi::dnnp {

using Sequence = std::vector<Index>;  // of groups

// Orders in which neighbors are near each other; topological where the groups have no cycle, by
// their forward operators where they have.
std::vector<Sequence> good_sequences(const Instance& instance);

// What a segment would do to an accelerator of one type: its load, everything else being
// elsewhere. Groups may also stay on the host, or (max-load) one segment of them.
// Latency: the cuts with the least sum of loads and host times, which is the latency when
// every segment waits for the one before it. Max-load: the least largest load. Accelerators are
// used in the order of ids, so with unequal ones it is not the best of all. The part of every
// group; nothing when memory rules all cuts out. O(groups^2 * accelerators), and the loads of all
// segments that fit.
std::optional<std::vector<Index>> cut_into_segments(const Instance& instance,
                                                    const Sequence& sequence,
                                                    DnnpObjective objective);

}  // namespace baechi::dnnp
