// SPDX-License-Identifier: Apache-2.0
// A graph at a batch size for which nobody has costs, between two for which somebody has. Beyond
// the paper.
#pragma once

#include <cstdint>
#include <span>

#include "baechi/graph/op_graph.h"

namespace baechi {

// The costs of every operator and the size of every tensor as a straight line between the two
// nearest of `sizes`, rounded up; where one of them has this batch size, exactly its own. Throws
// InputError when they are not one graph at different batch sizes (naming the first operator that
// differs), or when the batch size is outside of theirs.
OpGraph at_batch_size(std::span<const OpGraph> sizes, std::int64_t batch_size);

// Throws InputError as at_batch_size() does for graphs that are not one at different batch sizes.
void check_sizes_of_one(std::span<const OpGraph> sizes);

}  // namespace baechi
