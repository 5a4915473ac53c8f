// SPDX-License-Identifier: Apache-2.0
// Plans that keep tensors in a host's memory: which, and when each is fetched
// (docs/explanation/host_memory.md). Beyond the paper.
#pragma once

#include <cstdint>

#include "baechi/cost/cost_model.h"
#include "baechi/graph/op_graph.h"
#include "baechi/plan/request/answer.h"
#include "baechi/plan/request/request.h"
#include "baechi/plan/steps/sizes.h"

namespace baechi {

// Throws InputError for a cluster without one device of kind host, and for what has no fetches: an order that
// is not planned, an expert's placement, a host time.
void check_residency(const OpGraph& graph, const Cluster& cluster, const StepRequest& request);

// A step of so many micro-batches of `graph`, as the request asks. `without` is
// what the same request gets where nothing may be away: kAuto is never longer.
StepPlan plan_residing(OpGraph graph, std::uint32_t micro_batches, const Cluster& cluster,
                       const StepRequest& request, StepPlan without, PlanTimes* times = nullptr);

// What such a plan would bring where nothing fits, cheaply: with the cluster's host, or with one that has
// room for everything, behind the link that devices of such kinds have.
void tell_of_host(const OpGraph& graph, std::uint32_t micro_batches, const Cluster& cluster,
                  const PlanRequest& request, Unplaceable& answer);

}  // namespace baechi
