// SPDX-License-Identifier: Apache-2.0
// Pipeline schedules that have names: which part of which micro-batch every rank runs when. Beyond
// the paper. The same, action for action, as what torch.distributed.pipelining generates.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "baechi/place/pipeline/play.h"
#include "baechi/place/pipeline/stages.h"

namespace baechi::pipeline {

enum class StageStep : char { kForward = 'F', kInput = 'I', kWeight = 'W', kBackward = 'B' };

struct RankAction {  // kBackward: both gradients, one after the other
  std::uint32_t stage = 0;
  StageStep step = StageStep::kForward;
  std::uint32_t micro_batch = 0;
  friend bool operator==(const RankAction&, const RankAction&) = default;
};
std::string in_words(const RankAction& action);  // "2F0", as PyTorch writes it

enum class Loop : std::uint8_t {
  kOnce,   // one stage per rank
  kAgain,  // two: rank r has stages r and ranks + r
  kBack,   // two, in a V: r and 2 ranks - 1 - r
};

struct NamedSchedule {
  std::string_view name;  // as a method: over stages of equally many layers,
  std::string_view summary;
  std::string_view name_divided;  // and over stages that the planner divided
  std::string_view summary_divided;
  Loop loop;
  // Nothing where the schedule is not defined for so many micro-batches.
  std::optional<std::vector<RankAction>> (*actions)(std::uint32_t rank, std::uint32_t ranks,
                                                    std::uint32_t micro_batches);
};
std::span<const NamedSchedule> named_schedules();

// On stages in the order of their numbers, rank r on the device of stage r. Nothing as above.
std::optional<Actions> named_actions(const NamedSchedule& schedule, const StageGraph& graph,
                                     std::size_t num_devices);

}  // namespace baechi::pipeline
