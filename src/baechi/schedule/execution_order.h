// SPDX-License-Identifier: Apache-2.0
// In which order the operators of a device run: an executor may keep to the plan's order, to one of
// its own, or to none. Beyond the paper.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "baechi/graph/op_graph.h"
#include "baechi/schedule/schedule.h"

namespace baechi {

enum class ExecutionOrder : std::uint8_t {
  kPlanned,  // the schedule's own
  kProgram,  // that of its file (program_order() of graph/topological_order.h)
  kNone,     // whatever became ready first, ties by id
};

struct ExecutionOrderEntry {
  ExecutionOrder order;
  std::string_view name;  // in plan.json, on the command line and in Python
  std::string_view summary;
};
std::span<const ExecutionOrderEntry> execution_orders();
std::string_view execution_order_name(ExecutionOrder order);

// What an executor of that order makes of a placement, for the simulator to replay.
PlacedGraph as_executed(PlacedGraph placed, ExecutionOrder order, const OpGraph& graph,
                        std::size_t num_devices);

}  // namespace baechi
