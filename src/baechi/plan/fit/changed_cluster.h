// SPDX-License-Identifier: Apache-2.0
// A cluster with other capacities or more devices, for those who look for what would fit.
#pragma once

#include <cstddef>
#include <optional>

#include "baechi/base/units.h"
#include "baechi/cluster/cluster.h"

namespace baechi {

// With that capacity on all devices, if it is given, and as many as `count`, the further ones like the
// largest. Nothing when its link rules do not reach them.
std::optional<Cluster> changed_cluster(const Cluster& cluster, std::optional<Bytes> capacity,
                                       std::size_t count);

}  // namespace baechi
