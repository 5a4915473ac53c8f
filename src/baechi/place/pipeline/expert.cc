// SPDX-License-Identifier: Apache-2.0
#include "baechi/place/pipeline/expert.h"

#include <charconv>
#include <cstdint>
#include <optional>
#include <set>
#include <string_view>
#include <utility>

#include "baechi/base/error.h"
#include "baechi/base/in_quotes.h"
#include "baechi/place/pipeline/named.h"

namespace baechi::pipeline {
namespace {

DeviceId device_of(const Blocks& blocks, const Placement& placement, BlockId block) {
  const CostModel& costs = blocks.costs();
  const OpId first = blocks.ops(block).front();
  for (const OpId op : blocks.ops(block))
    if (placement[op] != placement[first])
      throw InputError("the expert placement parts operators " +
                       in_quotes(costs.graph()[first].name) + " and " +
                       in_quotes(costs.graph()[op].name) + ", which a stage has together");
  if (!blocks.may_run(block, placement[first]))
    throw InputError("the expert placement puts operator " + in_quotes(costs.graph()[first].name) +
                     ", or one that is with it, on device " +
                     in_quotes(costs.cluster()[placement[first]].name) + ", which may not run it");
  return placement[first];
}

// "2F0", as in_words() writes it.
std::optional<RankAction> action_of(std::string_view word) {
  RankAction action;
  const char *at = word.data(), *const end = at + word.size();
  const auto stage = std::from_chars(at, end, action.stage);
  if (stage.ec != std::errc() || stage.ptr == end) return std::nullopt;
  action.step = static_cast<StageStep>(*stage.ptr);
  if (std::string_view("FIWB").find(*stage.ptr) == std::string_view::npos) return std::nullopt;
  const auto batch = std::from_chars(stage.ptr + 1, end, action.micro_batch);
  if (batch.ec != std::errc() || batch.ptr != end) return std::nullopt;
  return action;
}

std::vector<Phase> phases_of(StageStep step) {
  switch (step) {
    case StageStep::kForward:
      return {Phase::kForward};
    case StageStep::kInput:
      return {Phase::kInput};
    case StageStep::kWeight:
      return {Phase::kWeight};
    case StageStep::kBackward:
      break;
  }
  return {Phase::kInput, Phase::kWeight};
}

}  // namespace

Division as_placed(const Blocks& blocks, const Placement& placement) {
  const Cluster& cluster = blocks.costs().cluster();
  std::vector<DeviceId> devices;  // in the order of their first blocks
  IdVector<BlockId, DeviceId> device(blocks.size(), DeviceId(0));
  std::set<DeviceId> left;
  for (const BlockId block : blocks.ids()) {
    device[block] = device_of(blocks, placement, block);
    if (left.insert(device[block]).second) devices.push_back(device[block]);
  }
  std::set<std::pair<DeviceId, DeviceId>> feeds;  // in the forward pass
  for (const Wire& wire : blocks.wires())
    for (const BlockPart& to : wire.to)
      if (wire.from.phase == Phase::kForward && to.phase == Phase::kForward)
        feeds.emplace(device[wire.from.block], device[to.block]);

  Division division{IdVector<BlockId, StageId>(blocks.size(), StageId(0)), {}};
  IdVector<DeviceId, StageId> stage(cluster.num_devices(), StageId(0));
  while (!left.empty()) {
    const auto waits = [&](DeviceId to) {
      for (const DeviceId from : left)
        if (from != to && feeds.contains({from, to})) return true;
      return false;
    };
    std::optional<DeviceId> next;
    for (const DeviceId candidate : devices)
      if (!next.has_value() && left.contains(candidate) && !waits(candidate)) next = candidate;
    if (!next.has_value())
      throw InputError("the expert placement has no stages: device " +
                       in_quotes(cluster[*left.begin()].name) +
                       " and others wait for each other in the forward pass");
    left.erase(*next);
    stage[*next] = division.device.push_back(*next);
  }
  for (const BlockId block : blocks.ids()) division.stage_of[block] = stage[device[block]];
  return division;
}

Actions as_ordered(const StageGraph& graph, const Cluster& cluster,
                   const IdVector<DeviceId, std::vector<std::string>>& order) {
  Actions actions(cluster.num_devices());
  std::set<std::pair<PartId, std::uint32_t>> done;
  for (const DeviceId device : order.keys())
    for (const std::string& word : order[device]) {
      const auto fail = [&](const std::string& why) {
        throw InputError("the expert order of device " + in_quotes(cluster[device].name) + " has " +
                         in_quotes(word) + why);
      };
      const std::optional<RankAction> action = action_of(word);
      if (!action.has_value()) {
        fail(", expected a stage, F, B, I or W, and a micro-batch, such as 0F0");
        continue;
      }
      if (action->stage >= graph.num_stages())
        fail(", the stages are 0 to " + std::to_string(graph.num_stages() - 1));
      if (action->micro_batch >= graph.micro_batches())
        fail(", the micro-batches are 0 to " + std::to_string(graph.micro_batches() - 1));
      for (const Phase phase : phases_of(action->step)) {
        const PartId part = StageGraph::part(StageId(action->stage), phase);
        if (graph[part].device != device)
          fail(", a stage of device " + in_quotes(cluster[graph[part].device].name));
        if (!graph[part].present) continue;
        if (!done.emplace(part, action->micro_batch).second) fail(" twice");
        actions[device].push_back({part, action->micro_batch});
      }
    }
  for (const PartId part : graph.parts())
    for (std::uint32_t m = 0; graph[part].present && m < graph.micro_batches(); ++m)
      if (!done.contains({part, m})) {
        const Phase phase = graph[part].phase;
        const StageStep step = phase == Phase::kForward ? StageStep::kForward
                               : phase == Phase::kInput ? StageStep::kInput
                                                        : StageStep::kWeight;
        throw InputError("the expert order does not have " +
                         in_quotes(in_words({graph[part].stage.value(), step, m})));
      }
  return actions;
}

}  // namespace baechi::pipeline
