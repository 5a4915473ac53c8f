// SPDX-License-Identifier: Apache-2.0
// Topological orders, and the cycle that forbids one.
#pragma once

#include <span>
#include <variant>
#include <vector>

#include "baechi/base/id.h"
#include "baechi/graph/op_graph.h"

namespace baechi {

// Edges grouped by `from`: row i of `edges` starts at `begin[i]`; begin has num_ops + 1 entries.
struct EdgeRows {
  std::span<const Edge> edges;
  std::span<const std::uint32_t> begin;
};

// The operators of one cycle, in order; the last one has an edge to the first.
struct Cycle {
  std::vector<OpId> ops;
};

// Kahn's algorithm, smallest id first among the free. O(edges + ops log ops); linear when the ids
// are topological already.
std::variant<std::vector<OpId>, Cycle> topological_order(const EdgeRows& rows);

// The order in which a program runs a graph: that of its ids, and what waits for a later operator right
// behind it. So a second run of an operator stands right before its first reader. O(edges log edges).
std::vector<OpId> program_order(const OpGraph& graph);

}  // namespace baechi
