// SPDX-License-Identifier: Apache-2.0
#include "baechi/simulate/check_placed.h"

#include <optional>
#include <string>

#include "baechi/base/assert.h"
#include "baechi/base/error.h"
#include "baechi/base/in_quotes.h"

namespace baechi::simulation {
namespace {

std::string operator_name(const CostModel& costs, OpId op) {
  return "operator " + in_quotes(costs.graph()[op].name);
}

std::string device_name(const CostModel& costs, DeviceId device) {
  return "device " + in_quotes(costs.cluster()[device].name);
}

}  // namespace

void check_sizes(const CostModel& costs, const PlacedGraph& placed) {
  const std::size_t num_ops = costs.graph().num_ops();
  const std::size_t num_devices = costs.cluster().num_devices();
  if (placed.device.size() != num_ops)
    throw InputError("the placement has " + std::to_string(placed.device.size()) +
                     " operators, the graph has " + std::to_string(num_ops));
  if (placed.order.has_value() && placed.order->size() != num_devices)
    throw InputError("the order has " + std::to_string(placed.order->size()) +
                     " devices, the cluster has " + std::to_string(num_devices));
}

void throw_cannot_run(const CostModel& costs, OpId op, DeviceId device) {
  if (device.index() >= costs.cluster().num_devices())
    throw InputError(operator_name(costs, op) + " is placed on device number " +
                     std::to_string(device.index()) + ", but the cluster has only " +
                     std::to_string(costs.cluster().num_devices()));
  throw InputError(operator_name(costs, op) + " is placed on " + device_name(costs, device) +
                   ", but has no compute time for its kind '" + costs.cluster()[device].kind + "'");
}

void throw_bad_order(const CostModel& costs, const PlacedGraph& placed) {
  IdVector<OpId, bool> listed(costs.graph().num_ops());
  for (const DeviceId device : placed.order->keys()) {
    for (const OpId op : (*placed.order)[device]) {
      if (!listed.contains(op))
        throw InputError("the order of " + device_name(costs, device) + " lists operator number " +
                         std::to_string(op.index()) + ", but the graph has only " +
                         std::to_string(listed.size()));
      if (placed.device[op] != device)
        throw InputError("the order of " + device_name(costs, device) + " lists " +
                         operator_name(costs, op) + ", which is placed on " +
                         device_name(costs, placed.device[op]));
      if (listed[op])
        throw InputError("the order of " + device_name(costs, device) + " lists " +
                         operator_name(costs, op) + " twice");
      listed[op] = true;
    }
  }
  for (const OpId op : listed.keys())
    if (!listed[op])
      throw InputError("the order of " + device_name(costs, placed.device[op]) + " lacks " +
                       operator_name(costs, op) + ", which is placed there");
  BAECHI_ASSERT(false, "the order is a partition of the operators after all");
}

void throw_stuck(const CostModel& costs, const PlacedGraph& placed,
                 const IdVector<DeviceId, std::size_t>& finished) {
  IdVector<OpId, bool> done(costs.graph().num_ops());
  for (const OpId op : done.keys()) done[op] = costs.graph()[op].variable;
  for (const DeviceId device : finished.keys())
    for (std::size_t i = 0; i < finished[device]; ++i) done[(*placed.order)[device][i]] = true;

  std::string stuck;
  for (const DeviceId device : finished.keys()) {
    const std::vector<OpId>& order = (*placed.order)[device];
    if (finished[device] == order.size()) continue;
    const OpId op = order[finished[device]];
    std::optional<OpId> missing;
    for (const Edge& edge : costs.graph().in_edges(op))
      if (!done[edge.from] && !missing.has_value()) missing = edge.from;
    BAECHI_ASSERT(missing.has_value(), "a device stands still only for want of an input");
    stuck += (stuck.empty() ? "" : "; ") + device_name(costs, device) + " is stuck at " +
             operator_name(costs, op) + ", which waits for '" +
             std::string(costs.graph()[*missing].name) + "' on " +
             device_name(costs, placed.device[*missing]);
  }
  throw InputError("the order waits for itself: " + stuck);
}

}  // namespace baechi::simulation
