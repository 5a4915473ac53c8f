// SPDX-License-Identifier: Apache-2.0
// Builds the small graph from a partition of the operators into meta-operators (Paper 3.1.3).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "baechi/base/id.h"
#include "baechi/base/units.h"
#include "baechi/graph/op_graph.h"
#include "baechi/optimize/expansion.h"

namespace baechi {

// Labels of sets of operators: two operators are in one set when their labels are equal. Labels are
// any numbers below the number of operators.
using OpLabels = IdVector<OpId, std::uint32_t>;

struct Contracted {
  OpGraph graph;
  Expansion expansion;
};

// Every operator alone.
OpLabels each_alone(const OpGraph& graph);
// The graph's colocation groups; an operator without one is alone.
OpLabels group_labels(const OpGraph& graph);

// One operator per label of `cluster`; operators of one label of `group` share a device, and every
// cluster must lie within one group. Requires the clusters to form no cycle, and to hold only
// operators that some kind of device can run together.
//
// A meta-operator runs its members in the order of the graph's topological order. It takes the sum
// of their times on every kind of device that can run them all, holds the sum of their permanent
// memory, and offers the tensors that leave it: a tensor with consumers in several clusters stays
// one tensor. Its temporary memory is what its members need at the worst moment beyond those
// tensors (operators of zero time apart, which share their moment with their successors). It is
// backward when all members are; its forward operator is that of the member with the most to
// compute among those that have one elsewhere. Operators are numbered topologically.
Contracted contract(const OpGraph& graph, const OpLabels& cluster, const OpLabels& group);

// The sum of the operators' times on each kind of device that can run them all.
std::vector<std::pair<KindId, Time>> summed_times(const OpGraph& graph, std::span<const OpId> ops);

}  // namespace baechi
