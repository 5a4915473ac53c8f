// SPDX-License-Identifier: Apache-2.0
// Random layered graphs of any size: the shape of a deep network with branches and skips.
#pragma once

#include <cstddef>
#include <cstdint>

#include "baechi/graph/op_graph.h"

namespace baechi::bench {

struct LayeredGraph {
  std::size_t num_ops = 1000;
  std::size_t width = 32;         // operators per layer
  std::size_t inputs_per_op = 3;  // tensors read, from the 8 layers before
  std::uint64_t seed = 1;
};

// Operators of 1 to 100 us with one output of up to 1 MiB, some permanent and temporary memory. Ids
// are topological.
OpGraph layered_graph(const LayeredGraph& layered);

}  // namespace baechi::bench
