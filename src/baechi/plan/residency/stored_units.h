// SPDX-License-Identifier: Apache-2.0
// What a store may have for the whole step, and what its updates wait for. Beyond the paper.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "baechi/base/id.h"
#include "baechi/base/units.h"
#include "baechi/cost/cost_model.h"
#include "baechi/graph/unroll.h"

namespace baechi {

inline constexpr std::string_view kStoreKind = "host";
DeviceId store_of(const Cluster& cluster);  // of that kind; there is one

// Of what may be away: variables that move together, with the updates that change them.
struct StoredUnit {
  std::vector<OpId> members;  // sorted
  Bytes bytes;
  // Whether a device may run its update all the same: one that alone changes all of it, takes the host time
  // and has no permanent memory.
  bool may_stream = false;
  Time on_host;  // of its updates
};

// What may be on this store: an update where it has a time there, a variable where all updates that
// read it may.
std::vector<StoredUnit> units_for_store(const CostModel& costs, const StepGraph& step,
                                        DeviceId store);

// Whether what the host cannot keep has room on all other devices together.
bool may_fit(const CostModel& costs, std::uint32_t micro_batches);

// Before one of these has ended, or begun if it is an update, nothing goes to the store for an update. Of
// copies that are apart, each may send its part of a sum alone.
std::vector<OpId> first_senders(const StepGraph& step, const OpGraph& graph,
                                const std::vector<StoredUnit>& units, const Unrolled* apart);

// The device works off all that one of these waits for, and the one itself if it is no update.
Time least_work(const CostModel& costs, const StepGraph& step, DeviceId device,
                const std::vector<OpId>& ends);

// The same with the longest path instead of the work, on the fastest devices.
Time shortest_path(const CostModel& costs, const StepGraph& step, DeviceId store,
                   const std::vector<OpId>& ends);

// Operators that are no updates, and for which each of these waits, or is one itself.
IdVector<OpId, bool> before_all_of(const StepGraph& step, const OpGraph& graph,
                                   const std::vector<OpId>& ends);

}  // namespace baechi
