// SPDX-License-Identifier: Apache-2.0
// What `chain` cuts: one topological sequence as a row of blocks, and what every run of blocks
// costs. Beyond the paper.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "baechi/base/id.h"
#include "baechi/base/units.h"
#include "baechi/cost/cost_model.h"
#include "baechi/place/topological_sequences.h"

namespace baechi {

using BlockId = Id<struct BlockTag>;

// Consecutive operators of the sequence, small enough not to matter one by one. What must stay
// together (colocation groups) or wants to (a backward operator and its forward one) is in the
// block of whichever comes first in the sequence; so a block is a run of the forward pass with the
// backward pass that belongs to it.
struct BlockRow {
  IdVector<OpId, BlockId> block_of;
  std::size_t num_blocks = 0;
};
// About max_blocks of them; a change of pin opens one more, so there may be as many as changes.
BlockRow make_blocks(const CostModel& costs, const TopologicalSequence& sequence,
                     std::size_t max_blocks);

// Costs of the segment of blocks first .. last-1, for all pairs, in O(1) each.
class SegmentCosts {
 public:
  SegmentCosts(const CostModel& costs, const TopologicalSequence& sequence, const BlockRow& row);

  std::size_t num_blocks() const { return num_blocks_; }
  // All its operators, on a device of this class; absent when some operator cannot run there.
  std::optional<Time> compute(std::size_t first, std::size_t last,
                              DeviceClassId device_class) const;
  // Some device may not hold some operator's pin: a segment may run only where all its pins allow.
  bool may_run(std::size_t first, std::size_t last, DeviceId device) const;
  // Every tensor that enters, once, over the mean link.
  Time incoming(std::size_t first, std::size_t last) const {
    return Time(incoming_[at(first, last)]);
  }
  // Peak on its device when the sequence runs without overlap: permanent memory, and at the worst
  // moment the largest sum of tensors made or read here that are alive, and temporary memory.
  Bytes memory(std::size_t first, std::size_t last) const {
    return Bytes(memory_[at(first, last)]);
  }

 private:
  std::size_t at(std::size_t first, std::size_t last) const {
    return first * (num_blocks_ + 1) + last;
  }
  void sum_times(const CostModel& costs, const BlockRow& row);
  void sum_incoming(const CostModel& costs, const BlockRow& row);
  void sum_memory(const CostModel& costs, const TopologicalSequence& sequence, const BlockRow& row);

  const CostModel& costs_;
  std::size_t num_blocks_;
  IdVector<DeviceClassId, std::vector<std::int64_t>> time_before_;     // prefix sums over blocks
  IdVector<DeviceClassId, std::vector<std::uint32_t>> cannot_before_;  // operators that cannot run
  std::vector<std::optional<DeviceId>> pin_;  // of each block; make_blocks keeps pins apart
  std::vector<std::int64_t> incoming_, memory_;
};

}  // namespace baechi
