// SPDX-License-Identifier: Apache-2.0
// Where the nodes of a picture go: a lane per device from left to right, data flowing down.
#pragma once

#include <cstddef>
#include <vector>

#include "baechi/base/id.h"
#include "baechi/report/picture/plan_picture.h"

namespace baechi {

struct LaneExtent {  // of a device, in columns
  std::size_t first = 0, width = 0;
};

struct PictureLayout {
  std::vector<std::size_t> row, column;  // by node; no two nodes share both
  IdVector<DeviceId, LaneExtent> lanes;  // devices without nodes have no width
  std::size_t rows = 0, columns = 0;
};

// Every edge that follows the order of start times goes down at least one row; parts of a model
// that feed each other have edges both ways, and one of them goes up. No row has more than five
// nodes of a device. Linear but for sorting.
PictureLayout layout_picture(const PlanPicture& picture, std::size_t num_devices);

}  // namespace baechi
