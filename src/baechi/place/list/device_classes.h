// SPDX-License-Identifier: Apache-2.0
// Devices that a scheduler can not tell apart but by what it put on them.
#pragma once

#include <vector>

#include "baechi/base/id.h"
#include "baechi/cost/cost_model.h"

namespace baechi {

// Every device is in one class. Two devices p, q of a class take the same time for every operator,
// and a transfer from any third device to p takes what it takes to q. In id order, within a class
// and by the first device of each.
std::vector<std::vector<DeviceId>> interchangeable_devices(const CostModel& costs);

}  // namespace baechi
