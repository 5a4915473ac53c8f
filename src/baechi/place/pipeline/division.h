// SPDX-License-Identifier: Apache-2.0
// Division of blocks into stages by dynamic programming. Beyond the paper.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "baechi/base/id.h"
#include "baechi/base/units.h"
#include "baechi/place/pipeline/blocks.h"
#include "baechi/place/pipeline/stages.h"

namespace baechi::pipeline {

// What runs of blocks first .. last-1 take, in O(1) each.
class RunCosts {
 public:
  explicit RunCosts(const Blocks& blocks);

  std::size_t size() const { return size_; }
  const Blocks& blocks() const { return *blocks_; }
  // Of one micro-batch; absent when an operator cannot run on devices of the class.
  std::optional<Time> work(std::size_t first, std::size_t last, DeviceClassId device_class) const;
  // Of the step, before and after all micro-batches. Requires that work() is there.
  Time per_step(std::size_t first, std::size_t last, DeviceClassId device_class) const {
    return per_step_[device_class][last] - per_step_[device_class][first];
  }
  bool may_run(std::size_t first, std::size_t last, DeviceId device) const;
  // From its forward pass to its backward pass, for each micro-batch.
  Bytes kept(std::size_t first, std::size_t last) const { return Bytes(kept_[at(first, last)]); }
  Bytes step(std::size_t first, std::size_t last) const { return step_[last] - step_[first]; }
  Bytes to_end(std::size_t first, std::size_t last) const { return to_end_[last] - to_end_[first]; }
  Bytes running(std::size_t block) const { return running_[block]; }
  // From blocks before this one to it and those behind it, and back.
  Bytes forward_border(std::size_t block) const { return forward_border_[block]; }
  Bytes backward_border(std::size_t block) const { return backward_border_[block]; }

 private:
  std::size_t at(std::size_t first, std::size_t last) const { return first * (size_ + 1) + last; }
  void sum_times();
  void sum_kept();
  void sum_borders();

  const Blocks* blocks_;
  std::size_t size_;
  IdVector<DeviceClassId, std::vector<Time>> work_, per_step_;  // prefix sums over blocks
  IdVector<DeviceClassId, std::vector<std::uint32_t>> cannot_;  // blocks that cannot run
  std::vector<Bytes> step_, to_end_, running_, forward_border_, backward_border_;
  std::vector<std::int64_t> kept_;
};

struct DivisionGoal {
  std::uint32_t micro_batches = 1;
  std::int64_t load_percent = 100;  // a stage may be so much longer than in the most even division
  // Micro-batches that stages hold at the most; fewer in the last ones, as in 1F1B.
  std::uint32_t most_begun = 1;
};

// Runs of blocks for the devices in this order, one for each place in it; a device that stands there
// several times shares its time and memory among its runs. Minimises (M - 1) times the largest load
// plus the sum of all loads, transfers and a share of what runs once per step included, within memory. Nothing when no division keeps to it.
std::optional<Division> divide(const RunCosts& costs, std::span<const DeviceId> order,
                               const DivisionGoal& goal);

}  // namespace baechi::pipeline
