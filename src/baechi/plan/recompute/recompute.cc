// SPDX-License-Identifier: Apache-2.0
#include "baechi/plan/recompute/recompute.h"

#include <chrono>
#include <cstdint>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "baechi/base/assert.h"
#include "baechi/base/error.h"
#include "baechi/base/short_text.h"
#include "baechi/cost/cost_model.h"
#include "baechi/plan/attempt/simulated_plan.h"
#include "baechi/plan/recompute/recompute_planning.h"
#include "baechi/plan/recompute/recompute_search.h"
#include "baechi/plan/request/recompute_request.h"
#include "baechi/verify/check_recomputation.h"

namespace baechi {
namespace {

constexpr const char* kMethod = "recompute";

// How much longer devices compute for it, for people.
std::string cost_in_words(const OpGraph& graph, const Plan& plan) {
  Time again, all;
  for (const OpId op : plan.schedule.slots.keys()) {
    const OpSlot& slot = plan.schedule.slots[op];
    all += slot.end - slot.start;
    if (op.index() >= graph.num_ops()) again += slot.end - slot.start;
  }
  return std::to_string(plan.recomputed.size()) +
         " operators run a second time: " + short_text(again) + " more of computing beside " +
         short_text(all - again);
}

Recomputed as_plan(const RecomputePlanning& planning, RecomputePlan found,
                   const PlanResult& without, ExecutionOrder order) {
  const OpGraph& graph = planning.costs().graph();
  OpGraph rewritten = recomputing(graph, found.again);
  const std::vector<std::string> faults = check_recomputation(graph, rewritten, found.again);
  BAECHI_ASSERT(faults.empty(), ("second runs broke a rule: " + faults.front()).c_str());
  Plan plan;
  {
    const CostModel costs(rewritten, planning.costs().cluster());
    plan = plan_of(costs, found.placed, kMethod, false, order);
  }
  plan.recomputed = std::move(found.again);
  const auto* none = std::get_if<Plan>(&without);
  plan.methods = none != nullptr ? none->methods : std::get<Unplaceable>(without).methods;
  plan.methods.push_back(outcome_of(plan));
  if (none != nullptr) plan.passes = none->passes;
  plan.notes.push_back(cost_in_words(graph, plan));
  return {std::move(rewritten), std::move(plan)};
}

}  // namespace

void of_any_second_runs(Unplaceable& answer, bool cannot_fit, bool all) {
  if (answer.proved && !cannot_fit)
    answer.reason = (all ? "with all second runs, " : "without second runs, ") + answer.reason;
  answer.proved = answer.proved && cannot_fit;
}

Recomputed plan_recomputing(const OpGraph& graph, const Cluster& cluster, Recompute recompute,
                            const PlanRequest& request, PlanTimes* times) {
  RecomputePlanning planning(graph, cluster, request);
  if (!planning.any()) {
    Recomputed made{std::nullopt, planning.plan_without(times)};
    if (Plan* plan = std::get_if<Plan>(&made.result))
      plan->notes.push_back(nothing_to_repeat(graph));
    else
      planning.suggest(std::get<Unplaceable>(made.result));
    return made;
  }
  if (recompute == Recompute::kAll) {
    Recomputed made = planning.plan_all(times);
    if (Plan* plan = std::get_if<Plan>(&made.result)) {
      const auto faults = check_recomputation(graph, *made.graph, plan->recomputed);
      BAECHI_ASSERT(faults.empty(), ("second runs broke a rule: " + faults.front()).c_str());
      plan->notes.push_back(cost_in_words(graph, *plan));
    } else {
      of_any_second_runs(std::get<Unplaceable>(made.result), planning.cannot_fit(), true);
    }
    return made;
  }
  PlanResult without = planning.plan_without(times);
  Plan* none = std::get_if<Plan>(&without);
  const auto begin = std::chrono::steady_clock::now();
  std::optional<RecomputePlan> found;
  bool stopped = false;
  try {
    if (none == nullptr || planning.memory_costs(*none)) found = planning.find(none);
  } catch (const Cancelled&) {  // anytime: the plan that there is stays
    if (none == nullptr) throw;
    stopped = true;
  }
  const std::int64_t nanoseconds =
      std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now() - begin)
          .count();
  const bool better = found.has_value() && !found->again.empty() &&
                      (none == nullptr || found->makespan < none->makespan());
  if (!better && none != nullptr) {
    none->bounds = planning.bounds();
    if (stopped)
      none->notes.emplace_back(
          "you stopped before second runs were looked for: this plan has none");
  }
  if (!better && none == nullptr) {
    auto& answer = std::get<Unplaceable>(without);
    of_any_second_runs(answer, planning.cannot_fit(), false);
    planning.suggest(answer);
  }
  if (!better) return {std::nullopt, std::move(without)};
  Recomputed made = as_plan(planning, *std::move(found), without, request.place.order);
  std::get<Plan>(made.result).bounds = planning.bounds();
  if (times != nullptr) times->methods.push_back({kMethod, nanoseconds});
  return made;
}

std::optional<Time> step_with_recomputation(const OpGraph& graph, const Cluster& cluster,
                                            const PlanRequest& request) {
  PlanRequest asked = request.within(request.budget.part(0.5));
  asked.method = "auto";
  RecomputePlanning planning(graph, cluster, asked);
  if (!planning.any()) return std::nullopt;
  const std::optional<RecomputePlan> found = planning.find(nullptr);
  if (!found.has_value()) return std::nullopt;
  return found->makespan;
}

}  // namespace baechi
