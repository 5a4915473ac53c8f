// SPDX-License-Identifier: Apache-2.0
// Filling devices one after the other along the topological order: what m-TOPO and the `balanced`
// baseline share. Paper 2.2.
#pragma once

#include <variant>

#include "baechi/base/id.h"
#include "baechi/base/units.h"
#include "baechi/cost/cost_model.h"
#include "baechi/place/placer.h"
#include "baechi/schedule/schedule.h"

namespace baechi {

struct FillPlan {
  IdVector<OpId, Bytes> need;     // d_i: what each operator adds to the fill of its device
  IdVector<DeviceId, Bytes> cap;  // a device takes operators until its fill would exceed this
};

// Walks the topological order and gives each operator to the current device, with the rest of its
// colocation group; when the cap is reached, the next device becomes current. An operator that may
// not run on the current device, or whose permanent memory does not fit there, goes to the next one
// that can take it and changes nothing for the others.
PlaceResult fill_devices(const CostModel& costs, const FillPlan& plan, const PlaceOptions& options);

// Permanent + temporary + output bytes of every operator.
IdVector<OpId, Bytes> operator_needs(const OpGraph& graph);

// Each device works off its operators in the graph's topological order.
PlacedGraph in_topological_order(const CostModel& costs, Placement placement);

// The most each device can hold at any moment under any schedule: all permanent memory, outputs and
// received copies, and the largest temporary.
IdVector<DeviceId, Bytes> reserved_bytes(const CostModel& costs, const Placement& placement);

}  // namespace baechi
