// SPDX-License-Identifier: Apache-2.0
// The order of a step of micro-batches, as the copies of operators tell it. Beyond the paper.
#pragma once

#include "baechi/graph/unroll.h"
#include "baechi/schedule/schedule.h"

namespace baechi {

// Every sum right behind the last copy that it waits for, so that the order of the copies alone
// tells it: a plan's file has no sums.
DeviceOrder with_sums_behind(const Unrolled& step, const DeviceOrder& order);

}  // namespace baechi
