// SPDX-License-Identifier: Apache-2.0
// Proofs of optimality on a reduced graph: what any y and any flow certify by themselves.
#pragma once

#include <vector>

#include "baechi/lp/reduced_graph.h"

namespace baechi::lp {

// w at y: the longest path from source to sink. An upper bound when y is feasible.
double longest_path(const ReducedGraph& graph, const std::vector<double>& y);

// A lower bound on the relaxation from an approximate dual solution. The flow is made a unit flow
// (each node keeps the proportions in which its inflow arrives, backwards from the sink), the
// prices are raised and lowered until a_out + a_in >= cost * flow holds, tightly. Any non-negative
// numbers give a valid bound; good ones give a good bound.
double certified_lower_bound(const ReducedGraph& graph, const std::vector<double>& flow,
                             const std::vector<double>& price);

}  // namespace baechi::lp
