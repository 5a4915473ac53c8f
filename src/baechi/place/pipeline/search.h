// SPDX-License-Identifier: Apache-2.0
// Searches for stages and an order of their parts with a short step. Beyond the paper.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "baechi/base/cancel.h"
#include "baechi/base/id.h"
#include "baechi/base/units.h"
#include "baechi/place/pipeline/blocks.h"
#include "baechi/place/pipeline/named.h"
#include "baechi/place/pipeline/play.h"
#include "baechi/place/pipeline/rules.h"
#include "baechi/place/pipeline/stages.h"

namespace baechi::pipeline {

struct Pipeline {
  const Blocks* blocks = nullptr;
  Division division;
  Rule rule;
  const NamedSchedule* schedule = nullptr;  // whose order it is, instead of a rule's
  Actions actions;
  Worth worth;
};

struct StageSearchOptions {
  std::int64_t work = 0;  // how many parts of micro-batches it may play
  const CancelFlag* cancel = nullptr;
  std::optional<Time> to_beat = {};  // what is far behind is not shaken
};

class StageSearch {
 public:
  StageSearch(const Cluster& cluster, std::uint32_t micro_batches,
              const StageSearchOptions& options);

  // Divisions of these blocks for all orders of devices, each with its best rule. The blocks must
  // outlive what is found.
  void divide(const Blocks& blocks);
  // The named schedules over the divisions so far join the best.
  void add_named();
  // Moves the borders of the best pipelines as long as that helps, then shifts some at random and
  // tries again with what work is left.
  void refine();
  // Whether memory kept a micro-batch out so far. Then rules that count on gradients to replace
  // activations may be better: they alone, over the divisions so far, with half of the work at least.
  bool lacked_room() const { return lacked_room_; }
  void start_eagerly();
  // The best by worth, in that order, no two of them with one division.
  const std::vector<Pipeline>& best() const { return best_; }

  // The schedule over the best of the divisions so far that have its loops; nothing if none has.
  std::optional<Pipeline> named(const NamedSchedule& schedule);
  // Nothing where the schedule is not defined for so many micro-batches, or gets stuck.
  std::optional<Pipeline> named(const NamedSchedule& schedule, const Blocks& blocks,
                                const Division& division);

  // The best rule for a division with this room on the devices; nothing if none finishes.
  std::optional<Pipeline> play(const Blocks& blocks, const Division& division,
                               const IdVector<DeviceId, Bytes>& room);

 private:
  void keep(Pipeline pipeline);
  void try_order(const Blocks& blocks, const class RunCosts& costs,
                 const std::vector<DeviceId>& order);
  void shake();
  bool is_far_behind() const;
  bool move_borders(Pipeline& pipeline, std::size_t first, std::size_t last);
  bool better_by_moving(Pipeline& pipeline, StageId stage, std::int64_t blocks);
  std::optional<Pipeline> moved(const Pipeline& pipeline, StageId stage, std::int64_t blocks);

  const Cluster* cluster_;
  std::uint32_t micro_batches_;
  std::int64_t work_;
  const std::int64_t all_work_;
  bool eager_ = false, lacked_room_ = false;
  const CancelFlag* cancel_;
  const std::optional<Time> to_beat_;
  Player player_;
  IdVector<DeviceId, Bytes> room_;
  std::vector<Pipeline> best_;
  std::vector<std::pair<const Blocks*, Division>> seen_;
};

}  // namespace baechi::pipeline
