// SPDX-License-Identifier: Apache-2.0
#include "baechi/place/pipeline/named.h"

#include <algorithm>
#include <array>
#include <deque>
#include <utility>

namespace baechi::pipeline {
namespace {

using RankActions = std::optional<std::vector<RankAction>>;

// One rank's list: every step of a stage takes the next micro-batch; those beyond the last one are
// left out.
class RankList {
 public:
  RankList(std::uint32_t stages, std::uint32_t micro_batches)
      : micro_batches_(micro_batches), forward_(stages, 0), input_(stages, 0), weight_(stages, 0) {}

  void forward(std::uint32_t stage) { add({stage, StageStep::kForward, forward_[stage]++}); }
  void backward(std::uint32_t stage) {
    add({stage, StageStep::kBackward, input_[stage]++});
    ++weight_[stage];
  }
  void input(std::uint32_t stage) {
    add({stage, StageStep::kInput, input_[stage]++});
    pending_.push_back(stage);
  }
  void weight(std::uint32_t stage) { add({stage, StageStep::kWeight, weight_[stage]++}); }
  // Of the gradients by inputs without one so far, the weights' for the first.
  void pending_weight() {
    if (pending_.empty()) return;
    weight(pending_.front());
    pending_.pop_front();
  }
  std::size_t pending() const { return pending_.size(); }
  std::vector<RankAction> take() { return std::move(actions_); }

 private:
  void add(RankAction action) {
    if (action.micro_batch < micro_batches_) actions_.push_back(action);
  }
  std::uint32_t micro_batches_;
  std::vector<std::uint32_t> forward_, input_, weight_;
  std::deque<std::uint32_t> pending_;
  std::vector<RankAction> actions_;
};

// All forward passes, then all backward passes.
RankActions gpipe(std::uint32_t rank, std::uint32_t ranks, std::uint32_t micro_batches) {
  RankList list(ranks, micro_batches);
  for (std::uint32_t m = 0; m < micro_batches; ++m) list.forward(rank);
  for (std::uint32_t m = 0; m < micro_batches; ++m) list.backward(rank);
  return list.take();
}

// As many forward passes as there are ranks behind, then one forward and one backward in turn.
RankActions one_f_one_b(std::uint32_t rank, std::uint32_t ranks, std::uint32_t micro_batches) {
  RankList list(ranks, micro_batches);
  const std::uint32_t ahead = std::min(ranks - 1 - rank, micro_batches);
  for (std::uint32_t m = 0; m < ahead; ++m) list.forward(rank);
  for (std::uint32_t m = ahead; m < micro_batches; ++m) {
    list.forward(rank);
    list.backward(rank);
  }
  for (std::uint32_t m = 0; m < ahead; ++m) list.backward(rank);
  return list.take();
}

// 1F1B over `chunks` stages per rank, in rounds of about as many micro-batches as there are ranks.
// With weights apart, their gradients come `rank` backward passes later.
RankActions in_rounds(std::uint32_t rank, std::uint32_t ranks, std::uint32_t micro_batches,
                      std::uint32_t chunks, bool weights_apart) {
  const std::uint32_t rounds = std::max(1U, micro_batches / ranks);
  if (micro_batches % rounds != 0) return std::nullopt;
  const std::uint32_t per_round = micro_batches / rounds, all = chunks * micro_batches;
  const std::uint32_t hops = (weights_apart ? 1 : 2) * (ranks - 1 - rank);
  const std::uint32_t ahead = std::min((chunks - 1) * per_round + hops, all);
  const auto stage = [&](std::uint32_t step, bool forward) {
    const std::uint32_t chunk = step / per_round % chunks;
    return (forward ? chunk : chunks - 1 - chunk) * ranks + rank;
  };
  RankList list(ranks * chunks, micro_batches);
  for (std::uint32_t step = 0; step < ahead; ++step) list.forward(stage(step, true));
  for (std::uint32_t step = 0; step < all; ++step) {
    if (ahead + step < all) list.forward(stage(ahead + step, true));
    if (!weights_apart) {
      list.backward(stage(step, false));
      continue;
    }
    list.input(stage(step, false));
    if (step >= rank) list.pending_weight();
  }
  while (list.pending() > 0) list.pending_weight();
  return list.take();
}

RankActions interleaved(std::uint32_t rank, std::uint32_t ranks, std::uint32_t micro_batches) {
  return in_rounds(rank, ranks, micro_batches, 2, false);
}
RankActions zb_h1(std::uint32_t rank, std::uint32_t ranks, std::uint32_t micro_batches) {
  return in_rounds(rank, ranks, micro_batches, 1, true);
}

// Qi et al., "Zero bubble pipeline parallelism", section 6: made for at least 2 ranks - 1
// micro-batches; of fewer, what there is.
RankActions zb_v(std::uint32_t rank, std::uint32_t ranks, std::uint32_t micro_batches) {
  const std::uint32_t planned = std::max(2 * ranks - 1, micro_batches);
  const std::uint32_t down = rank, up = 2 * ranks - 1 - rank;  // its stages on both arms of the V
  RankList list(2 * ranks, micro_batches);
  const auto both_gradients = [&](std::uint32_t stage) {
    list.input(stage);
    list.weight(stage);
  };
  const std::uint32_t first = 2 * (ranks - rank) - 1;
  for (std::uint32_t i = 0; i < first; ++i) list.forward(down);
  for (std::uint32_t i = 0; i < rank; ++i) {
    list.forward(up);
    list.forward(down);
  }
  for (std::uint32_t i = 0; i < ranks - rank; ++i) {
    list.forward(up);
    both_gradients(up);
  }
  std::uint32_t sent = first + rank, returned = ranks;  // forward passes on the two arms
  while (returned < sent || sent < planned) {
    if (sent < planned) {
      list.forward(down);
      ++sent;
    }
    both_gradients(down);
    list.forward(up);
    ++returned;
    both_gradients(up);
  }
  for (std::uint32_t i = 0; i < rank; ++i) {
    list.input(down);
    list.input(up);
  }
  for (std::uint32_t i = 0; i < ranks - rank; ++i) both_gradients(down);
  for (std::uint32_t i = 0; i < rank; ++i) list.weight(up);
  for (std::uint32_t i = 0; i < rank; ++i) list.weight(down);
  return list.take();
}

// DeepSeek's DualPipe cut in half; a forward and a backward pass that overlap there run one after
// the other here.
RankActions dualpipe_v(std::uint32_t rank, std::uint32_t ranks, std::uint32_t micro_batches) {
  if (micro_batches < 2 * ranks) return std::nullopt;
  const std::uint32_t down = rank, up = 2 * ranks - 1 - rank, behind = ranks - 1 - rank;
  RankList list(2 * ranks, micro_batches);
  for (std::uint32_t i = 0; i < 2 * behind; ++i) list.forward(down);
  for (std::uint32_t i = 0; i <= rank; ++i) {
    list.forward(down);
    list.forward(up);
  }
  for (std::uint32_t i = 0; i < behind; ++i) {
    list.input(up);
    list.pending_weight();
    list.forward(up);
  }
  for (std::uint32_t i = 0; i < micro_batches - 2 * ranks + rank + 1; ++i) {
    list.forward(down);
    list.backward(up);
    list.forward(up);
    list.backward(down);
  }
  for (std::uint32_t i = 0; i < behind; ++i) {
    list.backward(up);
    list.forward(up);
    list.backward(down);
  }
  bool apart = false;  // weights wait for the end
  const auto gradients = [&](std::uint32_t stage) {
    if (apart)
      list.input(stage);
    else
      list.backward(stage);
  };
  for (std::uint32_t i = 0; i <= rank; ++i) {
    const bool half = i == (rank + 1) / 2;
    apart = apart || (half && rank % 2 == 1);
    gradients(up);
    apart = apart || (half && rank % 2 == 0);
    gradients(down);
  }
  for (std::uint32_t i = 0; i < behind; ++i) {
    list.pending_weight();
    gradients(down);
  }
  for (std::uint32_t i = 0; i <= rank; ++i) list.pending_weight();
  return list.take();
}

constexpr std::array kNamed{
    NamedSchedule{
        .name = "gpipe",
        .summary = "all forward passes, then all backward passes; equally many layers per stage",
        .name_divided = "gpipe-divided",
        .summary_divided = "gpipe over the stages of `pipeline`",
        .loop = Loop::kOnce,
        .actions = gpipe},
    NamedSchedule{
        .name = "1f1b",
        .summary = "one forward and one backward pass in turn; equally many layers per stage",
        .name_divided = "1f1b-divided",
        .summary_divided = "1f1b over the stages of `pipeline`",
        .loop = Loop::kOnce,
        .actions = one_f_one_b},
    NamedSchedule{.name = "interleaved",
                  .summary = "1F1B with two stages per device; equally many layers per stage",
                  .name_divided = "interleaved-divided",
                  .summary_divided = "interleaved over the stages of `pipeline`",
                  .loop = Loop::kAgain,
                  .actions = interleaved},
    NamedSchedule{.name = "zb-h1",
                  .summary = "zero bubble: 1F1B with weight gradients where devices would idle; "
                             "equally many layers per stage",
                  .name_divided = "zb-h1-divided",
                  .summary_divided = "zb-h1 over the stages of `pipeline`",
                  .loop = Loop::kOnce,
                  .actions = zb_h1},
    NamedSchedule{
        .name = "zb-v",
        .summary = "zero bubble with two stages per device in a V; equally many layers per stage",
        .name_divided = "zb-v-divided",
        .summary_divided = "zb-v over the stages of `pipeline`",
        .loop = Loop::kBack,
        .actions = zb_v},
    NamedSchedule{.name = "dualpipe-v",
                  .summary = "two stages per device in a V, forward and backward in turn; equally "
                             "many layers per stage",
                  .name_divided = "dualpipe-v-divided",
                  .summary_divided = "dualpipe-v over the stages of `pipeline`",
                  .loop = Loop::kBack,
                  .actions = dualpipe_v},
};

}  // namespace

std::string in_words(const RankAction& action) {
  return std::to_string(action.stage) + static_cast<char>(action.step) +
         std::to_string(action.micro_batch);
}

std::span<const NamedSchedule> named_schedules() { return kNamed; }

std::optional<Actions> named_actions(const NamedSchedule& schedule, const StageGraph& graph,
                                     std::size_t num_devices) {
  const std::size_t per_rank = schedule.loop == Loop::kOnce ? 1 : 2;
  const auto ranks = static_cast<std::uint32_t>(graph.num_stages() / per_rank);
  Actions actions(num_devices);
  for (std::uint32_t rank = 0; rank < ranks; ++rank) {
    const auto list = schedule.actions(rank, ranks, graph.micro_batches());
    if (!list.has_value()) return std::nullopt;
    const auto add = [&](const RankAction& action, Phase phase) {
      const PartId part = StageGraph::part(StageId(action.stage), phase);
      if (graph[part].present) actions[graph[part].device].push_back({part, action.micro_batch});
    };
    for (const RankAction& action : *list) {
      if (action.step == StageStep::kForward) add(action, Phase::kForward);
      if (action.step == StageStep::kInput || action.step == StageStep::kBackward)
        add(action, Phase::kInput);
      if (action.step == StageStep::kWeight || action.step == StageStep::kBackward)
        add(action, Phase::kWeight);
    }
  }
  return actions;
}

}  // namespace baechi::pipeline
