// SPDX-License-Identifier: Apache-2.0
#include "baechi/place/pipeline/search.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <utility>

#include "baechi/base/random.h"
#include "baechi/place/pipeline/device_orders.h"
#include "baechi/place/pipeline/division.h"

namespace baechi::pipeline {
namespace {

constexpr std::size_t kMostKept = 8;

// The order itself; again and again from its begin, as interleaved schedules have it; and there and
// back, in a V.
std::vector<DeviceSequence> loops(const DeviceSequence& order) {
  constexpr std::size_t kMostStages = 32;
  std::vector<DeviceSequence> result{order};
  if (order.size() == 1) return result;
  DeviceSequence again = order, back = order;
  back.insert(back.end(), order.rbegin(), order.rend());
  result.push_back(std::move(back));
  for (int times = 2; times <= 4 && again.size() + order.size() <= kMostStages; ++times) {
    again.insert(again.end(), order.begin(), order.end());
    result.push_back(again);
  }
  return result;
}

// Every order with its loops, and once each what remains of them without their last devices.
std::vector<DeviceSequence> sequences(const std::vector<DeviceSequence>& orders) {
  std::vector<DeviceSequence> result;
  for (const DeviceSequence& order : orders)
    for (DeviceSequence& sequence : loops(order)) result.push_back(std::move(sequence));
  for (const DeviceSequence& order : orders)
    for (std::size_t count = order.size() - 1; count > 0; --count) {
      DeviceSequence fewer(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(count));
      if (std::find(result.begin(), result.end(), fewer) == result.end())
        result.push_back(std::move(fewer));
    }
  return result;
}

bool has_loops(const IdVector<StageId, DeviceId>& device, Loop loop) {
  const std::size_t count = device.size();
  for (std::size_t i = 0; i < count; ++i)
    for (std::size_t j = i + 1; j < count; ++j) {
      bool same = false;
      if (loop == Loop::kAgain) same = j == i + count / 2;
      if (loop == Loop::kBack) same = j == count - 1 - i;
      if ((device[StageId(i)] == device[StageId(j)]) != same) return false;
    }
  return loop == Loop::kOnce || count % 2 == 0;
}

}  // namespace

StageSearch::StageSearch(const Cluster& cluster, std::uint32_t micro_batches,
                         const StageSearchOptions& options)
    : cluster_(&cluster),
      micro_batches_(micro_batches),
      work_(options.work),
      all_work_(options.work),
      cancel_(options.cancel),
      to_beat_(options.to_beat),
      player_(cluster) {
  for (const DeviceId device : cluster.devices()) room_.push_back(cluster[device].capacity);
}

std::optional<Pipeline> StageSearch::play(const Blocks& blocks, const Division& division,
                                          const IdVector<DeviceId, Bytes>& room) {
  throw_if_cancelled(cancel_);
  const StageGraph graph(blocks, division, micro_batches_);
  std::optional<Pipeline> best;
  std::vector<Rule> rules = rules_for(graph);
  for (Rule& rule : rules) {
    rule.eager = eager_;
    const Played& played = player_.by_rule(graph, rule, room);
    work_ -= static_cast<std::int64_t>(graph.parts().size() * micro_batches_);
    lacked_room_ = lacked_room_ || played.lacked_room;
    if (!played.finished) continue;
    const Worth worth = worth_of(played, *cluster_);
    if (!best.has_value() || worth < best->worth)
      best = Pipeline{&blocks, division, rule, nullptr, played.actions, worth};
  }
  return best;
}

void StageSearch::keep(Pipeline pipeline) {
  const auto place =
      std::upper_bound(best_.begin(), best_.end(), pipeline,
                       [](const Pipeline& a, const Pipeline& b) { return a.worth < b.worth; });
  best_.insert(place, std::move(pipeline));
  if (best_.size() > kMostKept) best_.pop_back();
}

void StageSearch::divide(const Blocks& blocks) {
  constexpr std::size_t kMostOrders = 24;
  const RunCosts costs(blocks);
  for (const DeviceSequence& sequence : sequences(device_orders(blocks.costs(), kMostOrders))) {
    if (work_ <= 0 && !best_.empty()) return;
    try_order(blocks, costs, sequence);
  }
}

void StageSearch::try_order(const Blocks& blocks, const RunCosts& costs,
                            const DeviceSequence& order) {
  const auto deepest = static_cast<std::uint32_t>(order.size());
  for (const std::int64_t percent : {100, 106})
    for (const std::uint32_t begun : {deepest, std::uint32_t{1}}) {
      const std::optional<Division> division = pipeline::divide(
          costs, order,
          {.micro_batches = micro_batches_, .load_percent = percent, .most_begun = begun});
      if (!division.has_value()) continue;
      const std::pair<const Blocks*, Division> key(&blocks, *division);
      if (std::find(seen_.begin(), seen_.end(), key) != seen_.end()) break;
      seen_.push_back(key);
      if (std::optional<Pipeline> found = play(blocks, *division, room_)) keep(*std::move(found));
      break;
    }
}

std::optional<Pipeline> StageSearch::named(const NamedSchedule& schedule, const Blocks& blocks,
                                           const Division& division) {
  throw_if_cancelled(cancel_);
  const StageGraph graph(blocks, division, micro_batches_);
  const std::optional<Actions> actions = named_actions(schedule, graph, cluster_->num_devices());
  if (!actions.has_value()) return std::nullopt;
  const Played& played = player_.as_given(graph, *actions);
  if (!played.finished) return std::nullopt;
  return Pipeline{&blocks, division, {}, &schedule, *actions, worth_of(played, *cluster_)};
}

std::optional<Pipeline> StageSearch::named(const NamedSchedule& schedule) {
  std::optional<Pipeline> best;
  for (const auto& [blocks, division] : seen_) {
    if (!has_loops(division.device, schedule.loop)) continue;
    std::optional<Pipeline> found = named(schedule, *blocks, division);
    if (found.has_value() && (!best.has_value() || found->worth < best->worth))
      best = std::move(found);
  }
  return best;
}

// With so many blocks moved from the stage to the one before it; less than zero: the other way.
// Nothing if a stage would lose its last block or run what it cannot.
std::optional<Pipeline> StageSearch::moved(const Pipeline& pipeline, StageId stage,
                                           std::int64_t blocks) {
  Division division = pipeline.division;
  const StageId before(stage.index() - 1);
  IdVector<BlockId, StageId>& stage_of = division.stage_of;
  const auto first = std::lower_bound(stage_of.begin(), stage_of.end(), stage) - stage_of.begin();
  const StageId from = blocks > 0 ? stage : before, to = blocks > 0 ? before : stage;
  for (std::int64_t i = 0; i < std::abs(blocks); ++i) {
    const std::int64_t at = blocks > 0 ? first + i : first - 1 - i;
    if (at < 0 || at >= static_cast<std::int64_t>(stage_of.size())) return std::nullopt;
    const BlockId block(static_cast<std::size_t>(at));
    if (stage_of[block] != from || !pipeline.blocks->may_run(block, division.device[to]))
      return std::nullopt;
    stage_of[block] = to;
  }
  if (!std::binary_search(stage_of.begin(), stage_of.end(), from)) return std::nullopt;
  const StageGraph graph(*pipeline.blocks, division, micro_batches_);
  work_ -= static_cast<std::int64_t>(graph.parts().size() * micro_batches_);
  if (pipeline.schedule != nullptr) return named(*pipeline.schedule, *pipeline.blocks, division);
  const Played& played = player_.by_rule(graph, pipeline.rule, room_);
  if (!played.finished) return std::nullopt;
  return Pipeline{pipeline.blocks, std::move(division), pipeline.rule,
                  nullptr,         played.actions,      worth_of(played, *cluster_)};
}

bool StageSearch::better_by_moving(Pipeline& pipeline, StageId stage, std::int64_t blocks) {
  std::optional<Pipeline> other = moved(pipeline, stage, blocks);
  if (!other.has_value() || other->worth >= pipeline.worth) return false;
  pipeline = *std::move(other);
  return true;
}

// The borders in front of stages first .. last-1.
bool StageSearch::move_borders(Pipeline& pipeline, std::size_t first, std::size_t last) {
  bool better = false;
  for (std::size_t stage = std::max<std::size_t>(1, first);
       stage < std::min(last, pipeline.division.device.size()); ++stage)
    for (const std::int64_t blocks : {1, -1, 2, -2, 4, -4, 8, -8}) {
      if (work_ <= 0) return better;
      while (better_by_moving(pipeline, StageId(stage), blocks)) better = true;
    }
  return better;
}

void StageSearch::add_named() {
  for (const NamedSchedule& schedule : named_schedules())
    if (std::optional<Pipeline> found = named(schedule)) keep(*std::move(found));
}

void StageSearch::start_eagerly() {
  eager_ = true;
  work_ = std::max(work_, all_work_ / 2);
  best_.clear();
  for (const auto& [blocks, division] : seen_) {
    if (work_ <= 0 && !best_.empty()) return;
    if (std::optional<Pipeline> found = play(*blocks, division, room_)) keep(*std::move(found));
  }
}

void StageSearch::refine() {
  std::vector<Pipeline> refined;
  std::swap(refined, best_);
  for (Pipeline& pipeline : refined) {
    throw_if_cancelled(cancel_);
    while (move_borders(pipeline, 1, pipeline.division.device.size()))
      if (std::optional<Pipeline> again = play(*pipeline.blocks, pipeline.division, room_);
          again.has_value() && again->worth < pipeline.worth)
        pipeline = *std::move(again);
    const auto same = [&](const Pipeline& other) {
      return other.blocks == pipeline.blocks && other.division == pipeline.division;
    };
    if (std::none_of(best_.begin(), best_.end(), same)) keep(std::move(pipeline));
  }
  if (!is_far_behind()) shake();
}

// More than shaking makes up for.
bool StageSearch::is_far_behind() const {
  constexpr std::int64_t kPercent = 106;
  return to_beat_.has_value() && !best_.empty() &&
         best_.front().worth.makespan.count() / kPercent > to_beat_->count() / 100;
}

// One border of one of the best moves anywhere near, and those beside it follow.
void StageSearch::shake() {
  constexpr std::size_t kStarts = 3;
  constexpr int kMostRounds = 2'000;
  Random random(1);
  for (int round = 0; round < kMostRounds && work_ > 0 && !best_.empty(); ++round) {
    throw_if_cancelled(cancel_);
    const std::size_t start = random.below(std::min(kStarts, best_.size()));
    const std::size_t stages = best_[start].division.device.size();
    if (stages < 2) continue;
    const std::size_t stage = 1 + random.below(stages - 1);
    const std::int64_t far = 1 + static_cast<std::int64_t>(random.below(6));
    std::optional<Pipeline> trial =
        moved(best_[start], StageId(stage), random.below(2) == 0 ? far : -far);
    if (!trial.has_value()) continue;
    const std::size_t other = 1 + random.below(stages - 1);  // what it lost may be won elsewhere
    move_borders(*trial, stage > 2 ? stage - 1 : 1, stage + 2);
    move_borders(*trial, other, other + 1);
    if (trial->worth >= best_[start].worth) continue;
    if (std::optional<Pipeline> again = play(*trial->blocks, trial->division, room_);
        again.has_value() && again->worth < trial->worth)
      trial = std::move(again);
    best_[start] = *std::move(trial);
  }
  std::stable_sort(best_.begin(), best_.end(),
                   [](const Pipeline& a, const Pipeline& b) { return a.worth < b.worth; });
}

}  // namespace baechi::pipeline
