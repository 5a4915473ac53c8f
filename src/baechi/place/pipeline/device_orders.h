// SPDX-License-Identifier: Apache-2.0
// In which order stages may go to devices. Beyond the paper.
#pragma once

#include <cstddef>
#include <vector>

#include "baechi/base/id.h"
#include "baechi/cost/cost_model.h"

namespace baechi::pipeline {

using DeviceSequence = std::vector<DeviceId>;

// Orders of all devices that compute for a micro-batch, no two alike: devices with equal times, capacities and links count as one.
// All of them if there are not more than `most`; else some, the devices by speed and by memory, up
// and down, and as they are numbered. Of many devices only as many as there can be stages.
std::vector<DeviceSequence> device_orders(const CostModel& costs, std::size_t most);

}  // namespace baechi::pipeline
