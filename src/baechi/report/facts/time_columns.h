// SPDX-License-Identifier: Apache-2.0
// A plan cut into equal parts of its step: what every device does and holds in each.
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "baechi/base/id.h"
#include "baechi/base/units.h"
#include "baechi/graph/op_graph.h"
#include "baechi/schedule/plan.h"

namespace baechi {

struct DeviceColumns {
  std::vector<Time> computing;
  std::vector<Time> moving;   // sending or receiving; may exceed the column when transfers overlap
  std::vector<Bytes> memory;  // the most it holds in the column
  std::vector<std::optional<OpId>> longest;  // of those that compute in it
};

struct TimeColumns {
  Time width;  // of a column, rounded up; the last column may end after the step
  IdVector<DeviceId, DeviceColumns> devices;
};

// Requires at least one column.
TimeColumns time_columns(const OpGraph& graph, const Plan& plan, std::size_t columns);

}  // namespace baechi
