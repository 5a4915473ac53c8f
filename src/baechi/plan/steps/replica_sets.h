// SPDX-License-Identifier: Apache-2.0
// Which devices each replica of a placement has. Beyond the paper.
#pragma once

#include <cstdint>
#include <vector>

#include "baechi/base/id.h"
#include "baechi/cost/cost_model.h"

namespace baechi {

// Disjoint sets of equally many devices, as alike as can be: the i-th device of one stands for the
// i-th of another.
using ReplicaDevices = std::vector<std::vector<DeviceId>>;

// At most two ways: neighbours make a set, or neighbours are each other's replicas.
std::vector<ReplicaDevices> replica_sets(const Cluster& cluster, std::uint32_t replicas);

// The devices of the first set alone, each as slow as any that stands for it, and as small, less
// `less`.
Cluster cluster_of_one(const Cluster& cluster, const ReplicaDevices& sets, Bytes less);

}  // namespace baechi
