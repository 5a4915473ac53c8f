// SPDX-License-Identifier: Apache-2.0
// Plans of placements: simulated, verified, and told as a plan tells them.
#pragma once

#include <string>

#include "baechi/base/cancel.h"
#include "baechi/cost/cost_model.h"
#include "baechi/schedule/execution_order.h"
#include "baechi/schedule/plan.h"
#include "baechi/simulate/execution_simulator.h"

namespace baechi {

// What the simulator saw, as a plan keeps it.
IdVector<DeviceId, PlanDevice> plan_devices(const Trace& trace);

// The plan of a placement that is known to fit as an executor of that order runs it: simulates,
// verifies (a violation is an InternalError: our bug), and fills in everything but the table of
// methods.
Plan plan_of(const CostModel& costs, const PlacedGraph& placed, const std::string& method,
             bool bounds, ExecutionOrder order = ExecutionOrder::kPlanned);

// The row of a plan in the table of methods.
MethodOutcome outcome_of(const Plan& plan);

// The same plan with what this trace of it tells.
Plan retold(const Plan& plan, const CostModel& costs, Trace trace, ExecutionOrder order);
// The plan as an executor of that order runs it on the cluster of `costs`, which has as many
// devices. It need not fit; bounds, methods and passes are not about it and are gone.
Plan replayed(const Plan& plan, const CostModel& costs, ExecutionOrder order,
              const CancelFlag* cancel = nullptr);

// A plan that was made for devices of other capacities, for the cluster of `costs`: what runs where
// and when stays, bounds (if it has any) and gap are those of this cluster, and a note names the
// devices that it was planned with less memory for. Throws InputError when the clusters differ in
// anything but capacities, or a device holds more than it has here.
Plan plan_with_capacities(Plan plan, const CostModel& costs);

}  // namespace baechi
