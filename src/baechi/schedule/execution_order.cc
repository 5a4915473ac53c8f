// SPDX-License-Identifier: Apache-2.0
#include "baechi/schedule/execution_order.h"

#include <array>

#include "baechi/graph/topological_order.h"

namespace baechi {
namespace {

constexpr std::array<ExecutionOrderEntry, 3> kOrders{{
    {ExecutionOrder::kPlanned, "planned", "every device keeps to the order of the plan"},
    {ExecutionOrder::kProgram, "program", "every device keeps to the order of the graph's file"},
    {ExecutionOrder::kNone, "none", "a device runs whatever became ready first"},
}};

}  // namespace

std::span<const ExecutionOrderEntry> execution_orders() { return kOrders; }

std::string_view execution_order_name(ExecutionOrder order) {
  std::string_view name;
  for (const ExecutionOrderEntry& entry : kOrders)
    if (entry.order == order) name = entry.name;
  return name;
}

PlacedGraph as_executed(PlacedGraph placed, ExecutionOrder order, const OpGraph& graph,
                        std::size_t num_devices) {
  if (order == ExecutionOrder::kPlanned) return placed;
  placed.order.reset();
  placed.asking.reset();
  if (order == ExecutionOrder::kProgram) {
    placed.order.emplace(num_devices);
    placed.asking = program_order(graph);
    for (const OpId op : *placed.asking) (*placed.order)[placed.device[op]].push_back(op);
  }
  return placed;
}

}  // namespace baechi
