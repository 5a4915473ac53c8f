// SPDX-License-Identifier: Apache-2.0
#include "apps/replays.h"

#include <string>
#include <vector>

#include "baechi/base/error.h"
#include "baechi/base/short_text.h"
#include "baechi/options/option_text.h"
#include "baechi/plan/request/planner_options.h"
#include "baechi/plan/request/request.h"

namespace baechi::cli {

void add_order_option(OptionSet& set, std::optional<ExecutionOrder>& order) {
  const auto read = [&order](const std::string& text) {
    StepRequest request;
    read_option(find_planner_option("order"), text, request, Entrance::kCommandLine);
    order = request.search.place.order;
  };
  std::string names;
  for (const ExecutionOrderEntry& entry : execution_orders())
    names += (names.empty() ? "" : ", ") + std::string(entry.name);
  set.add("--order", read,
          "The order in which devices run their operators: " + names + " (default: the plan's own)")
      .type_name("NAME");
}

void refuse_order(const Plan& plan, std::optional<ExecutionOrder> order) {
  if (plan.micro_batches > 1 && order.value_or(plan.order) != ExecutionOrder::kPlanned)
    throw InputError("--order", "a step of micro-batches runs in its planned order");
  if (!plan.recomputed.empty() && order.value_or(plan.order) != plan.order)
    throw InputError("--order", "second runs of operators have their place in the plan's order");
  if (plan.replicas.any() && order.value_or(plan.order) != plan.order)
    throw InputError("--order", "replicas run in the plan's order");
  if (!plan.residency.empty() && order.value_or(plan.order) != plan.order)
    throw InputError("--order", "fetches have their place in the plan's order");
}

std::optional<DeviceId> first_over(const Plan& plan) {
  for (const DeviceId device : plan.devices.keys())
    if (plan.devices[device].peak > plan.cluster.devices[device.index()].capacity) return device;
  return std::nullopt;
}

std::string over_words(const Plan& plan, DeviceId device) {
  const Device& full = plan.cluster.devices[device.index()];
  return "device '" + full.name +
         "' runs out of memory: " + short_text(plan.devices[device].peak - full.capacity) +
         " over its capacity";
}

}  // namespace baechi::cli
