// SPDX-License-Identifier: Apache-2.0
// The stages of planning a step with second runs: plans without, starts, the search. Beyond the
// paper.
#pragma once

#include <optional>
#include <vector>

#include "baechi/cost/cost_model.h"
#include "baechi/plan/fit/memory_needs.h"
#include "baechi/plan/recompute/recompute_plan.h"
#include "baechi/plan/recompute/recompute_search.h"
#include "baechi/plan/recompute/second_runs.h"
#include "baechi/plan/request/answer.h"
#include "baechi/plan/request/request.h"

namespace baechi {

// A graph, a cluster and what is asked for, which all must outlive it.
class RecomputePlanning {
 public:
  RecomputePlanning(const OpGraph& graph, const Cluster& cluster, const PlanRequest& request);
  RecomputePlanning(const RecomputePlanning&) = delete;  // members refer to others
  RecomputePlanning& operator=(const RecomputePlanning&) = delete;

  bool any() const { return runs_.any(); }
  const CostModel& costs() const { return costs_; }
  // Without second runs: what `none` finds.
  PlanResult plan_without(PlanTimes* times) const;
  // Memory makes the step longer than it would be with ample memory.
  bool memory_costs(const Plan& without);
  // By arithmetic, with or without second runs.
  bool cannot_fit() const { return prove_cannot_fit(costs_, Units(costs_)).has_value(); }
  // What would do where nothing fits, with second runs or without.
  void suggest(Unplaceable& answer) const;
  // Valid for plans with second runs: what they take more does not shorten anything, and the memory
  // that they save is not asked for.
  std::vector<NamedBound> bounds() const;

  Recomputed plan_all(PlanTimes* times);
  // The shortest step found, in the order that is asked for. Without: the plan without second runs,
  // if there is one.
  std::optional<RecomputePlan> find(const Plan* without);

 private:
  bool is_few() const;
  bool is_large() const;
  bool searches() const;
  PlanRequest quick(double share) const;
  // `fits`: something does without second runs.
  PlanResult quick_start(const CostModel& costs, bool fits) const;
  std::vector<Recomputation> whole_regions() const;
  // Every region runs again; where the order was lost, it need not fit. Of few operators the plan is
  // as good as that of kAll.
  std::optional<RecomputePlan> all(bool fits);
  const Plan* with_ample_memory();
  void add_starts(const Plan* without, std::vector<RecomputePlan>& found);
  void improve(const Plan* without, std::vector<RecomputePlan>& found);
  // When asked to stop, the best until then.
  std::optional<RecomputePlan> find_in_planned_order(const Plan* without);
  std::optional<RecomputePlan> in_program_order(const IdVector<OpId, bool>& chosen,
                                                const Placement* placement);

  const CostModel costs_;
  PlanRequest request_;
  const SecondRuns runs_;
  const Cluster room_;
  RecomputeSearch search_;
  const ExecutionOrder order_;      // that runs
  std::optional<PlanResult> easy_;  // with ample memory
};

}  // namespace baechi
