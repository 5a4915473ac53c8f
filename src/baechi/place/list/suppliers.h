// SPDX-License-Identifier: Apache-2.0
// Operators that are cheaper to run late than to send: weights, constants, what is made of them.
#pragma once

#include "baechi/base/id.h"
#include "baechi/cost/cost_model.h"

namespace baechi {

// A supplier has no parents but suppliers, and takes, together with all those before it, at most a
// quarter of what sending its largest output takes on the best link. Its earliest schedulable time
// says nothing about where it belongs: it could start anywhere at once, and a list scheduler would
// spread suppliers, and with them their colocation groups, over whatever devices are idle, far from
// those who read them.
IdVector<OpId, bool> find_suppliers(const CostModel& costs);

}  // namespace baechi
