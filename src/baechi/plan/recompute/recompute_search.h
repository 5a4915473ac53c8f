// SPDX-License-Identifier: Apache-2.0
// The search for which operators to run a second time: on the replay, from given placements. Beyond
// the paper.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "baechi/base/id.h"
#include "baechi/base/units.h"
#include "baechi/cost/cost_model.h"
#include "baechi/graph/op_graph.h"
#include "baechi/plan/recompute/keep_or_recompute.h"
#include "baechi/plan/recompute/recompute_plan.h"
#include "baechi/plan/recompute/second_runs.h"
#include "baechi/plan/request/request.h"
#include "baechi/schedule/schedule.h"
#include "baechi/simulate/simulator.h"

namespace baechi {

class RecomputeSearch {
 public:
  // All that it is given must outlive it. `work` is how much it may do, in simulated operators.
  RecomputeSearch(const CostModel& costs, const SecondRuns& runs, const PlanRequest& request,
                  std::int64_t work);

  // Second runs with which the start fits, as few as it can; nothing if it finds none.
  std::optional<RecomputePlan> fit(const RecomputeStart& start);
  // The same plan with other second runs, or fewer, so that the step is shorter.
  RecomputePlan improved(RecomputePlan plan);
  // From there by small steps over placement, order and second runs together, for so much work;
  // nothing if nothing it meets fits.
  std::optional<RecomputePlan> walked(const RecomputePlan& plan, std::int64_t work,
                                      std::uint64_t seed);
  // The same second runs elsewhere, or in another order, for so much work.
  RecomputePlan refined(RecomputePlan plan, std::int64_t work);

  // Whole regions, so that least memory is needed.
  IdVector<OpId, bool> all() const;
  // So many choices at most, as if on one device, from those that keep most to all().
  std::vector<IdVector<OpId, bool>> from_few_to_all(std::size_t count) const;

  RecomputeStart start_of(const RecomputePlan& plan) const;
  // Simulates what is placed; `costs` are of its graph.
  void measure(RecomputePlan& plan, const CostModel& costs) const;
  std::int64_t work_left() const { return work_; }

 private:
  using Chosen = IdVector<OpId, bool>;
  // A graph with second runs, and what simulates it.
  struct Again {
    Again(const CostModel& given, std::vector<Recomputation> runs)
        : again(std::move(runs)),
          graph(std::make_shared<const OpGraph>(recomputing(given.graph(), again))),
          costs(*graph, given.cluster()),
          simulator(costs) {}
    std::vector<Recomputation> again;
    std::shared_ptr<const OpGraph> graph;
    CostModel costs;
    Simulator simulator;
  };
  RecomputePlan tried(const RecomputeStart& start, const Chosen& chosen,
                      const SecondRuns::Leads& leads = {});
  RecomputePlan squeezed(RecomputePlan plan, const RecomputeStart& start);
  std::optional<RecomputePlan> repaired(RecomputePlan plan);
  Chosen chosen_in(const RecomputePlan& plan) const;

  const CostModel& costs_;
  const SecondRuns& runs_;
  const PlanRequest& request_;
  std::int64_t work_;
  std::unique_ptr<Again> again_;  // of the last try: the next one often has the same second runs
};

// Times and orders of a plan of the graph as given.
RecomputeStart start_of(const Schedule& schedule, const OpGraph& graph);

}  // namespace baechi
