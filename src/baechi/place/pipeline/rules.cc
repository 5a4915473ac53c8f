// SPDX-License-Identifier: Apache-2.0
#include "baechi/place/pipeline/rules.h"

#include <algorithm>

namespace baechi::pipeline {

Worth worth_of(const Played& played, const Cluster& cluster) {
  Worth worth{Bytes(0), played.makespan};
  for (const DeviceId device : cluster.devices())
    worth.over += std::max(Bytes(0), played.peaks[device] - cluster[device].capacity);
  return worth;
}

std::vector<Rule> rules_for(const StageGraph& graph) {
  const std::uint32_t all = graph.micro_batches();
  const std::uint32_t deepest = *std::max_element(graph.depth().begin(), graph.depth().end());
  bool separate_weights = false;
  bool several_stages = false;
  for (const StageId stage : graph.stages()) {
    const StagePart& weight = graph[StageGraph::part(stage, Phase::kWeight)];
    separate_weights = separate_weights ||
                       (weight.present && graph[StageGraph::part(stage, Phase::kInput)].present);
    several_stages =
        several_stages || graph.parts_on(weight.device).size() > kEveryMicroBatch.size();
  }
  std::vector<IdVector<StageId, std::uint32_t>> held;
  const auto hold = [&](auto&& count) {
    IdVector<StageId, std::uint32_t> most;
    for (const StageId stage : graph.stages())
      most.push_back(std::clamp(count(graph.depth()[stage]), std::uint32_t{1}, all));
    if (std::find(held.begin(), held.end(), most) == held.end()) held.push_back(std::move(most));
  };
  hold([](std::uint32_t depth) { return depth; });
  hold([](std::uint32_t depth) { return depth + 1; });
  hold([](std::uint32_t depth) { return 2 * depth - 1; });
  hold([&](std::uint32_t) { return deepest; });
  hold([&](std::uint32_t) { return 2 * deepest - 1; });
  hold([&](std::uint32_t) { return all; });

  std::vector<Rule> rules;
  for (const auto& most_begun : held)
    for (const bool at_once : {false, true})
      for (const bool later_first : {true, false}) {
        if (at_once && !separate_weights) continue;
        if (!later_first && !several_stages) continue;
        rules.push_back({.most_begun = most_begun,
                         .weights_at_once = at_once,
                         .later_stages_first = later_first});
      }
  rules.push_back({.most_begun = held.back(), .forward_first = true});
  return rules;
}

}  // namespace baechi::pipeline
