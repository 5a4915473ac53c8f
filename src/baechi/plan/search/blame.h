// SPDX-License-Identifier: Apache-2.0
// What keeps a step from being shorter, operator by operator, for the moves of a search.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "baechi/base/id.h"
#include "baechi/cost/cost_model.h"
#include "baechi/schedule/schedule.h"

namespace baechi {

struct Blame {  // why an operator on the critical path started when it did
  OpId op;
  OpId cause;
  enum class Reason : std::uint8_t { kLocalInput, kTransfer, kBusyDevice } reason;
};

// Walks back from the last operator to end: what kept each from starting earlier? `previous` is who
// ran before it on its device. Never empty.
std::vector<Blame> blame_critical_path(const CostModel& costs, const IdVector<OpId, OpSlot>& slots,
                                       const IdVector<OpId, std::optional<OpId>>& previous);

}  // namespace baechi
