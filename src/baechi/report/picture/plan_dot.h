// SPDX-License-Identifier: Apache-2.0
// A plan as a Graphviz picture that stays readable: every operator of a small graph, parts of a
// model of a large one.
#pragma once

#include <cstddef>
#include <string>

#include "baechi/graph/op_graph.h"
#include "baechi/schedule/plan.h"

namespace baechi {

// Up to `max_nodes` operators: each of them, coloured by device, colocation groups as clusters.
// More: devices as clusters, and in them one node for all operators of a device whose names begin
// alike, with as many parts of the names as `max_nodes` has room for; edges say how much they
// carry.
std::string plan_dot(const OpGraph& graph, const Plan& plan, std::size_t max_nodes = 300);

}  // namespace baechi
