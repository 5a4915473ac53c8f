// SPDX-License-Identifier: Apache-2.0
// Whether every device runs its operators in the order that the plan's executor has.
#pragma once

#include <functional>
#include <string>

#include "baechi/base/id.h"
#include "baechi/base/units.h"
#include "baechi/graph/op_graph.h"
#include "baechi/schedule/execution_order.h"
#include "baechi/schedule/schedule.h"
#include "baechi/verify/sentences.h"

namespace baechi {

// Tells `report` of every operator that is out of turn. `rows` lists each device's operators by
// start, those that take no time before the one that starts at the same moment; `ready` is when the
// inputs of every operator are there. Requires that the schedule keeps every other rule of timing.
// Of operators that take no time a schedule does not show who came first: what may be right is not
// reported.
void check_order(const OpGraph& graph, const Schedule& schedule, ExecutionOrder order,
                 const DeviceOrder& rows, const IdVector<OpId, Time>& ready, const Sentences& say,
                 const std::function<void(const std::string&)>& report);

}  // namespace baechi
