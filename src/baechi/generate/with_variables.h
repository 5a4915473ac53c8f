// SPDX-License-Identifier: Apache-2.0
// A generated graph at the grain of modules with its weights as variables. Beyond the paper.
#pragma once

#include "baechi/graph/op_graph.h"

namespace baechi {

// Of every module with permanent memory: its weights, and in training what its update keeps, as
// variables, and the gradient as a tensor that the update reads. Of the 16 bytes per parameter of a
// training step two are weights and two their gradient (16 bits), the rest the update's. A device of
// kind `host`, if the graph has times for it, runs updates alone.
OpGraph with_variables(const OpGraph& graph);

}  // namespace baechi
