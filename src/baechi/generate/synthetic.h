// SPDX-License-Identifier: Apache-2.0
// Graphs of a shape rather than of a model, with costs drawn from a seed: operators of 1 MFLOP to
// 4 GFLOP with tensors of 1 KiB to 4 MiB, spread evenly over the orders of magnitude.
#pragma once

#include <cstddef>
#include <cstdint>

#include "baechi/generate/costing.h"
#include "baechi/graph/op_graph.h"

namespace baechi {

struct SyntheticOptions {
  std::int64_t operators = 1000;
  std::uint64_t seed = 0;
  Costing costing = {};
};

// op0 -> op1 -> op2 -> ...
OpGraph generate_chain(const SyntheticOptions& options);

// source -> as many branches as there are other operators -> sink. At least 3 operators.
OpGraph generate_fork_join(const SyntheticOptions& options);

// Layers of 1 to 2 sqrt(operators) operators, at most 256. Every operator reads one operator of the
// layer before and 0 to 4 (about 2 on average) of the last few layers. A tensor may have many
// consumers.
OpGraph generate_layered(const SyntheticOptions& options);

}  // namespace baechi
