// SPDX-License-Identifier: Apache-2.0
// What a step holds at most, from its times: a quick answer that errs on the safe side.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "baechi/base/id.h"
#include "baechi/base/units.h"
#include "baechi/cost/cost_model.h"
#include "baechi/schedule/schedule.h"
#include "baechi/simulate/block_replay.h"
#include "baechi/simulate/replay_graph.h"

namespace baechi::simulation {

// Looks at a device once per operator, from the end of the one before it to its own end, and takes
// all that is held at any moment of that time to be held at once. Operators without length count
// together with the next one that has a length. So the answer may be more than a replay with memory
// would tell, and is never less.
//
// Refers to the cost model and to the edges of its graph, which must outlive it.
class MemoryCeiling {
 public:
  MemoryCeiling(const CostModel& costs, const ReplayGraph& edges);

  // No device holds more than its capacity. False says nothing.
  bool fits(const DeviceOrder& orders, const IdVector<OpId, OpSlot>& slots,
            std::span<const Copy> copies);
  // Of the last one, where sizes add up to a number of bytes.
  Bytes most_held(DeviceId device) const;

 private:
  using Place = std::uint32_t;  // in a device's order
  struct Row {                  // a device's order
    std::vector<OpId> ops;      // without variables, where there are any
    std::span<const OpId> order;
    std::vector<std::int64_t> change;  // bytes more than at the place before
    std::vector<Place> until;  // the next that has a length; what is held at a place is held there
    std::size_t starting = 0, ending = 0;  // where the last search by time has ended
  };

  void lay_out(DeviceId device, const std::vector<OpId>& all);
  void hold(DeviceId device, Place first, Place last, Bytes size);
  void hold_outputs(OpId op);
  Place last_reader(TensorId tensor, DeviceId device) const;
  void hold_sent(std::span<const Copy> copies_of_one);
  Place place_at_start(DeviceId device, Time time);
  Place place_at_end(DeviceId device, Time time);

  const CostModel* costs_;
  const OpGraph* graph_;
  const ReplayGraph* edges_;
  bool can_add_up_;  // all sizes together are a number of bytes
  bool variables_;   // there are some

  const DeviceOrder* orders_ = nullptr;
  const IdVector<OpId, OpSlot>* slots_ = nullptr;
  IdVector<OpId, Place> place_;
  IdVector<DeviceId, Row> rows_;
};

}  // namespace baechi::simulation
