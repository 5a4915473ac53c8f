// SPDX-License-Identifier: Apache-2.0
// The smallest sets of operators that `pipeline` moves as one. Beyond the paper.
#pragma once

#include <cstdint>

#include "baechi/base/id.h"
#include "baechi/cost/cost_model.h"
#include "baechi/graph/union_find.h"
#include "baechi/place/topological_sequences.h"

namespace baechi::pipeline {

// Runs in the backward pass of a micro-batch, and no forward operator waits for it.
IdVector<OpId, bool> backward_ops(const OpGraph& graph);

// Colocation groups, backward operators with their forward ones, operators per step with those that
// read or make their tensors; united until neither the forward passes nor the backward passes of
// two sets wait for each other in a circle.
UnionFind items(const CostModel& costs, const IdVector<OpId, bool>& backward);

// Unites further until no two sets wait for each other in a circle, forward or backward.
void unite_circles(const OpGraph& graph, const IdVector<OpId, bool>& backward, UnionFind& sets);

// The items' representatives, each after those whose forward operators it waits for; among free
// choices, the one that comes first in `sequence`.
std::vector<std::uint32_t> item_order(const OpGraph& graph, const IdVector<OpId, bool>& backward,
                                      UnionFind& sets, const TopologicalSequence& sequence);

// The sequence with what reads one variable side by side, as the time steps of a recurrent layer
// do: elsewhere the variable, and worse, its gradient of every reader would be sent. Variables that
// are smaller than what operators send each other do not count, nor do readers that others wait for
// in between.
TopologicalSequence variables_together(const CostModel& costs, const TopologicalSequence& sequence);

}  // namespace baechi::pipeline
