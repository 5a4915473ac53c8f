// SPDX-License-Identifier: Apache-2.0
// Which operators of a GraphDef are backward, and whose (Paper 3.1.2 co-places them). Private to
// io/.
#pragma once

#include "baechi/graph/op_graph_builder.h"
#include "baechi/io/graph_def/graph_def_operators.h"

namespace baechi {

// Backward are the operators that are named after a gradient, and all that use their results: the
// optimizer too. The forward operator of a gradient is the one that its name names, or the one with
// most FLOPs in the scope it names; sums of gradients, and gradients whose names tell nothing, have
// that of what uses them, else of what they use. `builder` has the operators in this order.
void pair_gradients(const GraphDefOperators& operators, OpGraphBuilder& builder);

}  // namespace baechi
