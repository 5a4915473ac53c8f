// SPDX-License-Identifier: Apache-2.0
// Sums over a graph that the tests of the generators compare.
#pragma once

#include <cstdint>
#include <string_view>

#include "baechi/base/units.h"
#include "baechi/graph/op_graph.h"

namespace baechi::testing {

struct GraphSums {
  Time one_device;    // all operators of the kind one after the other
  Time longest_path;  // without communication
  Bytes permanent;
  Bytes outputs;
  Bytes unread;  // outputs that nobody consumes: they live until the step ends
  std::size_t backward = 0;
  std::size_t backward_without_forward = 0;
};
GraphSums sums_of(const OpGraph& graph, std::string_view device_kind = "gpu");

// FNV-1a over everything in the graph: names, kinds, times, memory, tensors, edges, groups.
std::uint64_t checksum(const OpGraph& graph);

// FLOPs of the operators of this kind, recovered from their times on the rtx2080 when they are
// bound by arithmetic: (time - launch) * FLOP/s.
double compute_flops(const OpGraph& graph, std::string_view op_kind);

}  // namespace baechi::testing
