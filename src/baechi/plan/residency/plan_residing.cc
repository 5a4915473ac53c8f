// SPDX-License-Identifier: Apache-2.0
#include "baechi/plan/residency/plan_residing.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "baechi/base/assert.h"
#include "baechi/base/short_text.h"
#include "baechi/cost/cost_model.h"
#include "baechi/graph/residency.h"
#include "baechi/plan/attempt/simulated_plan.h"
#include "baechi/plan/planner.h"
#include "baechi/plan/request/planner_options.h"
#include "baechi/plan/residency/residency_bounds.h"
#include "baechi/plan/residency/residency_search.h"
#include "baechi/plan/residency/residency_start.h"
#include "baechi/verify/check_residency.h"

namespace baechi {
namespace {

constexpr const char* kMethod = "residency";

void check_request(const OpGraph& graph, const Cluster& cluster, const PlanRequest& request) {
  const auto refuse = [](const std::string& why) { throw OptionError("residency", why); };
  std::size_t hosts = 0;
  for (const DeviceId device : cluster.devices())
    if (cluster[device].kind == kStoreKind) ++hosts;
  if (hosts == 0)
    refuse(
        "the cluster has no memory to keep anything: add a host, such as +1xhost:256GiB or --host "
        "256GiB");
  if (hosts > 1)
    refuse("the cluster has " + std::to_string(hosts) + " hosts; one is planned with: merge them");
  if (hosts == cluster.num_devices()) refuse("the cluster has a host and no other device");
  if (graph.memory_mode() == MemoryMode::kRetain)
    refuse(
        "the graph's memory mode is retain, which keeps all outputs on their devices: use "
        "dataflow");
  if (request.recompute != Recompute::kNone)
    refuse("plans have no second runs beside it yet: leave out recompute");
  if (request.place.order != ExecutionOrder::kPlanned)
    refuse("fetches are part of the planned order: ask for that");
  if (request.place.expert != nullptr) refuse("an expert's placement has no fetches");
  if (request.robust.has_value())
    refuse("plans with fetches are compared by their steps alone: leave out robust");
  if (cluster.host_time().has_value())
    refuse("it is not planned with a host time yet: leave that out");
}

std::string in_words(const OpGraph& graph, const Plan& plan, const Cluster& cluster) {
  Bytes stored, put, fetched;
  for (const OpId op : plan.residency.on_store)
    if (graph[op].variable) stored += graph[op].permanent;
  const DeviceId store = *cluster.find(plan.residency.store);
  for (const Transfer& transfer : plan.schedule.transfers) {
    const Bytes bytes = plan.schedule.slots.empty() ? Bytes(0) : graph.size(transfer.tensor);
    if (transfer.to == store) put += bytes;
    if (transfer.from == store) fetched += bytes;
  }
  return plan.residency.store + " keeps " + short_text(stored) + " of variables; per step " +
         short_text(put) + " are put there and " + short_text(fetched) + " fetched";
}

Plan told(const CostModel& costs, const OpGraph& given, FoundResidency& found) {
  const std::vector<std::string> faults =
      check_residency(given, costs.graph(), costs.cluster().spec(), found.residency);
  BAECHI_ASSERT(faults.empty(), ("fetches broke a rule: " + faults.front()).c_str());
  Plan plan = plan_of(costs, found.placed, kMethod, false);
  plan.residency = std::move(found.residency);
  plan.notes.push_back(in_words(costs.graph(), plan, costs.cluster()));
  return plan;
}

}  // namespace

Residing plan_residing(const OpGraph& graph, const Cluster& cluster, const PlanRequest& request,
                       PlanTimes* times) {
  check_request(graph, cluster, request);
  const CostModel costs(graph, cluster);
  PlanRequest plain = request;
  plain.residency = AwayChoice::kNone;
  plain.suggest = false;
  PlanResult without = make_plan(costs, plain, times);
  Plan* none = std::get_if<Plan>(&without);
  const auto begin = std::chrono::steady_clock::now();
  std::optional<ResidencyStart> start = residency_start(costs, plain);
  std::optional<FoundResidency> found;
  if (start.has_value())
    found = find_residency(costs, *std::move(start), request.residency == AwayChoice::kAll);
  const bool all = request.residency == AwayChoice::kAll;
  const bool better = found.has_value() && found->fits &&
                      (none == nullptr || all || found->makespan < none->makespan());
  const std::vector<NamedBound> bounds =
      request.bounds ? residency_bounds(costs) : std::vector<NamedBound>{};
  if (!better && none != nullptr && !all) {
    none->bounds = bounds;
    return {std::nullopt, std::move(without)};
  }
  if (!better) {
    Unplaceable answer;
    if (none == nullptr) answer = std::get<Unplaceable>(std::move(without));
    answer.proved = false;
    if (found.has_value())
      answer.reason = "with all that may be away on the host, a device still lacks " +
                      short_text(found->over) + " (" + short_text(found->step_needs) + " in all)";
    answer.short_by = found.has_value() ? found->over : answer.short_by;
    return {std::nullopt, std::move(answer)};
  }
  OpGraph step = residing(graph, found->residency);
  Plan plan = told(CostModel(step, cluster), graph, *found);
  plan.bounds = bounds;
  plan.methods = none != nullptr ? none->methods : std::get<Unplaceable>(without).methods;
  plan.methods.push_back(outcome_of(plan));
  if (none != nullptr) plan.passes = none->passes;
  if (times != nullptr)
    times->methods.push_back({kMethod, std::chrono::duration_cast<std::chrono::nanoseconds>(
                                           std::chrono::steady_clock::now() - begin)
                                           .count()});
  return {std::move(step), std::move(plan)};
}

}  // namespace baechi
