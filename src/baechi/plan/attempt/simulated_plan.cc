// SPDX-License-Identifier: Apache-2.0
#include "baechi/plan/attempt/simulated_plan.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "baechi/base/assert.h"
#include "baechi/base/error.h"
#include "baechi/base/in_quotes.h"
#include "baechi/base/short_text.h"
#include "baechi/bounds/lower_bounds.h"
#include "baechi/verify/check_schedule.h"
#include "baechi/verify/check_variables.h"

namespace baechi {

IdVector<DeviceId, PlanDevice> plan_devices(const Trace& trace) {
  IdVector<DeviceId, PlanDevice> devices;
  for (const DeviceTrace& device : trace.devices)
    devices.push_back(
        {device.peak, device.peak_at, device.peak_op, device.busy, device.sent, device.received});
  return devices;
}

Plan plan_of(const CostModel& costs, const PlacedGraph& placed, const std::string& method,
             bool bounds, ExecutionOrder order) {
  const OpGraph& graph = costs.graph();
  const Cluster& cluster = costs.cluster();
  Trace trace = simulate(costs, as_executed(placed, order, graph, cluster.num_devices()));
  std::vector<std::string> violations =
      check_schedule(graph, cluster, trace.schedule, {.order = order});
  if (violations.empty()) violations = check_carried(graph, cluster, trace.schedule);
  BAECHI_ASSERT(violations.empty(), ("a plan broke a rule: " + violations.front()).c_str());

  Plan plan;
  plan.graph_name = graph.name();
  plan.cluster = cluster.spec();
  plan.memory_mode = graph.memory_mode();
  plan.order = order;
  plan.method = method;
  plan.schedule = std::move(trace.schedule);
  plan.devices = plan_devices(trace);
  if (bounds) plan.bounds = lower_bounds(costs);
  return plan;
}

MethodOutcome outcome_of(const Plan& plan) {
  MethodOutcome row;
  row.method = plan.method;
  row.makespan = plan.makespan();
  IdVector<DeviceId, bool> used(plan.devices.size());
  for (const OpSlot& slot : plan.schedule.slots) used[slot.device] = true;
  for (const DeviceId device : plan.devices.keys()) {
    if (used[device]) ++row.devices_used;
    row.peaks.push_back(plan.devices[device].peak);
  }
  return row;
}

Plan retold(const Plan& plan, const CostModel& costs, Trace trace, ExecutionOrder order) {
  Plan result = plan;
  result.cluster = costs.cluster().spec();
  result.order = order;
  result.devices = plan_devices(trace);
  result.schedule = std::move(trace.schedule);
  result.bounds.clear();
  result.methods.clear();
  result.passes.clear();
  return result;
}

Plan replayed(const Plan& plan, const CostModel& costs, ExecutionOrder order,
              const CancelFlag* cancel) {
  const OpGraph& graph = costs.graph();
  BAECHI_ASSERT(costs.cluster().num_devices() == plan.cluster.devices.size(),
                "a plan is replayed on as many devices");
  const std::size_t num_devices = costs.cluster().num_devices();
  const PlacedGraph placed =
      as_executed({placement_of(plan.schedule), order_of(plan.schedule, graph, num_devices)}, order,
                  graph, num_devices);
  return retold(plan, costs, simulate(costs, placed, {.cancel = cancel}), order);
}

Plan plan_with_capacities(Plan plan, const CostModel& costs) {
  const Cluster& cluster = costs.cluster();
  ClusterSpec same = plan.cluster;
  std::string less;
  for (std::size_t i = 0; i < std::min(same.devices.size(), cluster.num_devices()); ++i) {
    const Device& device = cluster[DeviceId(i)];
    Bytes& planned = same.devices[i].capacity;
    if (planned < device.capacity)
      less += (less.empty() ? "" : ", ") + in_quotes(device.name) + " " + short_text(planned) +
              " of " + short_text(device.capacity);
    planned = device.capacity;
  }
  if (same != cluster.spec())
    throw InputError("the plan is for a cluster that differs in more than capacities");
  plan.cluster = std::move(same);
  const bool had_bounds = !plan.bounds.empty();
  const std::vector<std::string> violations =
      check_schedule(costs.graph(), cluster, plan.schedule, {.order = plan.order});
  if (!violations.empty()) throw InputError("the plan does not fit: " + violations.front());
  plan.bounds.clear();
  if (had_bounds && plan.recomputed.empty() && !plan.replicas.any())
    plan.bounds = lower_bounds(costs);
  if (!less.empty()) plan.notes.push_back("planned with less memory than there is: " + less);
  return plan;
}

}  // namespace baechi
