// SPDX-License-Identifier: Apache-2.0
// Orders of a step of micro-batches in which a device goes on with what it has begun. Beyond the
// paper.
#pragma once

#include <vector>

#include "baechi/graph/unroll.h"
#include "baechi/schedule/schedule.h"

namespace baechi {

// Other orders of a step for the same placement, the one with the longest runs first. Who runs a
// plan asks a device for what follows each other as one, so of plans that are equally long the one
// with longer runs takes the host less time:
// - where one device has all: one micro-batch after the other, in the order of the graph;
// - what no operator of its micro-batch waits for (the gradients of weights, most often) behind
//   what it waits for itself: on all devices, or on one of them.
std::vector<DeviceOrder> orders_in_runs(const Unrolled& step, const PlacedGraph& placed);

}  // namespace baechi
