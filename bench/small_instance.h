// SPDX-License-Identifier: Apache-2.0
// Small random graphs on small clusters, of every kind that matters to a placer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "baechi/cluster/cluster.h"
#include "baechi/graph/op_graph.h"

namespace baechi::bench {

struct InstanceKind {
  std::string_view name;
  std::int64_t transfer_percent = 100;  // of the longest operator's time: the longest transfer
  bool tight = false;    // the devices together have 1.1 to 1.5 times what the graph needs
  bool unequal = false;  // speeds of 1, 1/2 and 1/4
};
std::span<const InstanceKind> instance_kinds();

struct SmallInstance {
  OpGraph graph;
  Cluster cluster;
};

// Series-parallel in look: every operator reads one or two of the four before it. The
// communication mode depends on the seed. With `tight`, there may be no plan that fits.
SmallInstance small_instance(const InstanceKind& kind, std::size_t num_ops, std::size_t num_devices,
                             std::uint64_t seed);

}  // namespace baechi::bench
