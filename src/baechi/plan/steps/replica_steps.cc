// SPDX-License-Identifier: Apache-2.0
#include "baechi/plan/steps/replica_steps.h"

#include <algorithm>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "baechi/base/assert.h"
#include "baechi/base/short_text.h"
#include "baechi/bounds/lower_bounds.h"
#include "baechi/graph/replicas.h"
#include "baechi/plan/attempt/simulated_plan.h"
#include "baechi/plan/recompute/ample_memory.h"
#include "baechi/plan/steps/replica_request.h"
#include "baechi/verify/check_plan.h"

namespace baechi {
namespace {

// Valid with any second runs: they shorten nothing, and no memory is asked for.
std::vector<NamedBound> bounds_of_replicas(const OpGraph& graph, const Plan& plan,
                                           const Cluster& cluster, const StepRequest& request) {
  const Unrolled step = unroll(side_by_side(graph, plan.replicas.count), plan.micro_batches);
  const CostModel costs(step.graph, cluster);
  if (request.second_runs() == Recompute::kNone)
    return lower_bounds(costs, request.search.place.cancel);
  const Cluster ample = roomier(costs, std::nullopt);
  return lower_bounds(CostModel(step.graph, ample), request.search.place.cancel);
}

// Of several replicas: what they reduce, and how the plan stands to the verifier and to bounds.
void finish(const OpGraph& graph, const Unrolled& step, const Cluster& cluster,
            const StepRequest& request, Plan& plan) {
  Bytes bytes;
  for (const auto& bucket : plan.replicas.buckets)
    for (const ReducedTensor& tensor : bucket) bytes += size_of(graph, tensor);
  plan.notes.push_back(
      in_replicas(plan.replicas.count) + " of " + std::to_string(plan.micro_batches) +
      (plan.micro_batches == 1 ? " micro-batch" : " micro-batches") + " each reduce " +
      short_text(bytes) + " in " + std::to_string(plan.replicas.buckets.size()) +
      (plan.replicas.buckets.size() == 1 ? " bucket" : " buckets"));
  plan.methods.push_back(outcome_of(plan));
  const std::vector<std::string> faults = check_plan(graph, step, plan);
  BAECHI_ASSERT(faults.empty(), ("a step of replicas broke a rule: " + faults.front()).c_str());
  if (!request.search.bounds) return;
  try {
    plan.bounds = bounds_of_replicas(graph, plan, cluster, request);
  } catch (const Cancelled&) {  // the plan stays
    plan.notes.emplace_back("you stopped before bounds were computed");
  }
}

}  // namespace

StepPlan plan_replicas(OpGraph graph, std::uint32_t micro_batches, const Cluster& cluster,
                       const StepRequest& request, const PlanWithoutReplicas& plan) {
  const bool any = request.replicas->empty();
  std::vector<std::uint32_t> counts = *request.replicas;
  for (std::uint32_t count = 1;
       any && count <= std::min<std::size_t>(micro_batches, cluster.num_devices()); ++count)
    counts.push_back(count);
  std::erase_if(counts, [&](std::uint32_t count) { return micro_batches % count != 0; });
  std::ranges::sort(counts);
  const std::string why_not = counts.back() > 1 ? why_no_replicas(graph) : "";
  if (!why_not.empty()) counts = {1};
  ReplicaRace race(graph, micro_batches, cluster, request, plan);
  for (const std::uint32_t count : counts) race.enter(count);
  race.run();
  StepPlan step = race.take();
  auto* best = std::get_if<Plan>(&step.result);
  if (best == nullptr) return step;
  if (best->replicas.any()) finish(graph, step.step, cluster, request, *best);
  if (counts.size() > 1)
    for (std::string& note : race.told()) best->notes.push_back(std::move(note));
  if (!why_not.empty()) best->notes.push_back("one replica: " + why_not);
  return step;
}

}  // namespace baechi
