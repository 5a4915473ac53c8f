// SPDX-License-Identifier: Apache-2.0
// Which of several operators that could start at the same moment goes first (Paper 2.3 leaves it
// open).
#pragma once

#include <cstdint>
#include <vector>

#include "baechi/base/id.h"
#include "baechi/cost/cost_model.h"

namespace baechi {

// A total order of the operators: the smaller rank goes first.
struct Priority {
  IdVector<OpId, std::uint32_t> rank;
  std::vector<OpId> by_rank;
};

// By static level, the computing time on the longest way from an operator to the end of the step:
// who holds up most goes first, as in the earliest-task-first rule that m-ETF builds on. Then by
// id.
// Before them all come the suppliers that others wait for: called, they are what a device does
// next.
Priority longest_way_first(const CostModel& costs, const IdVector<OpId, bool>& suppliers);

}  // namespace baechi
