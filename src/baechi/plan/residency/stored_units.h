// SPDX-License-Identifier: Apache-2.0
// What a store may have for the whole step. Beyond the paper.
#pragma once

#include <vector>

#include "baechi/base/id.h"
#include "baechi/base/units.h"
#include "baechi/cost/cost_model.h"

namespace baechi {

// Of what may be away: variables that move together, with the updates that change them.
struct StoredUnit {
  std::vector<OpId> members;  // sorted
  Bytes bytes;
};

// What may be on this store: an update where it has a time there, a variable where all updates that
// read it may.
std::vector<StoredUnit> units_for_store(const CostModel& costs, DeviceId store);

}  // namespace baechi
