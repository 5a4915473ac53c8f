// SPDX-License-Identifier: Apache-2.0
// The matching-path relaxation to a certified gap, without a general LP solver.
//
// Split each knob into two parallel copies, one that answers to the group of its tail, one to the
// group of its head: then every group is a simplex of its own. Soften "longest path" into
// mu log sum over paths of exp(length / mu). Seen from one group, the softened length is least when
// the group's unit is poured like water onto its knobs, at levels head + length + tail + mu ln
// cost. A sweep along the topological order refills all in-groups, using heads it has just updated;
// the sweep back refills all out-groups: block coordinate descent in which news crosses the whole
// graph in one sweep. The path probabilities are a unit flow, whose best response is a lower bound;
// the y give an upper bound.
#pragma once

#include <vector>

#include "baechi/base/cancel.h"
#include "baechi/lp/reduced_graph.h"

namespace baechi::lp {

struct SoftOptions {
  double gap = 0.005;                  // stop when upper <= (1 + gap) lower
  int max_sweeps = 2000;               // forward and backward count separately
  const CancelFlag* cancel = nullptr;  // throws Cancelled
};

// On a reduced graph, in its units.
struct SoftSolution {
  std::vector<double> y;  // by edge
  double upper_bound = 0, lower_bound = 0;
  int sweeps = 0;
  bool converged = false;
};

SoftSolution fill_softly(const ReducedGraph& graph, const SoftOptions& options = {});

}  // namespace baechi::lp
