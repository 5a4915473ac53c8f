// SPDX-License-Identifier: Apache-2.0
// What the search for second runs starts from, and what it finds. Beyond the paper.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "baechi/base/units.h"
#include "baechi/graph/op_graph.h"
#include "baechi/plan/recompute/second_runs.h"
#include "baechi/plan/request/answer.h"
#include "baechi/schedule/schedule.h"

namespace baechi {

// A placement of the graph as given, and the order in which all of it runs.
struct RecomputeStart {
  Placement device;
  std::vector<OpId> sequence;  // topological
};

// Second runs and their plan, simulated.
struct RecomputePlan {
  std::vector<Recomputation> again;
  SecondRuns::Leads leads;  // empty: none
  std::shared_ptr<const OpGraph> graph;
  PlacedGraph placed;  // of `graph`
  Time makespan;
  IdVector<DeviceId, Bytes> peaks;
  Bytes over;  // what devices hold more than they have, together

  bool fits() const { return over == Bytes(0); }
};

struct Recomputed {
  std::optional<OpGraph>
      graph;  // that of the plan; absent: nothing runs twice, it is the given one
  PlanResult result;
};

}  // namespace baechi
