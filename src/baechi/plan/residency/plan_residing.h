// SPDX-License-Identifier: Apache-2.0
// Plans that keep tensors in a host's memory: which, and when each is fetched
// (docs/explanation/host_memory.md). Beyond the paper.
#pragma once

#include <optional>

#include "baechi/cluster/cluster.h"
#include "baechi/graph/op_graph.h"
#include "baechi/plan/request/answer.h"
#include "baechi/plan/request/request.h"

namespace baechi {

struct Residing {
  std::optional<OpGraph> graph;  // that of the plan; absent: nothing is away, it is the given one
  PlanResult result;
};

// A step of one micro-batch, as request.residency asks; kAuto is never longer than what make_plan() finds.
// Throws InputError as make_plan() does, for a cluster without one device of kind host, and for what has no
// fetches: second runs, an order that is not planned, an expert's placement, `robust`, a host time.
Residing plan_residing(const OpGraph& graph, const Cluster& cluster, const PlanRequest& request,
                       PlanTimes* times = nullptr);

}  // namespace baechi
