// SPDX-License-Identifier: Apache-2.0
// The list scheduler that m-ETF and m-SCT are (Paper 2.3, 2.4).
//
// A queue holds pairs (operator, device) by earliest schedulable time, equation (1) plus the waits
// in transfer queues. The head is scheduled if its device has room for the operator; else the pair
// is removed. An operator whose parents are all placed joins the queue with every device.
//
// A colocation group goes where the first of its operators to be scheduled goes, and the memory for
// all of it is reserved there.
#pragma once

#include "baechi/cost/cost_model.h"
#include "baechi/place/allowed_devices.h"
#include "baechi/place/list/favorite_child.h"
#include "baechi/place/placer.h"

namespace baechi {

// With favorite children (null: without), devices wait for them. Requires that every operator has a
// device that it may use.
PlaceResult run_list_scheduler(const CostModel& costs, const AllowedDevices& allowed,
                               const PlaceOptions& options, const FavoriteChildren* favorites);

}  // namespace baechi
