// SPDX-License-Identifier: Apache-2.0
#include "baechi/place/pipeline/equal_layers.h"

#include <algorithm>
#include <map>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

namespace baechi::pipeline {
namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }

using Layer = std::pair<std::string_view, std::string_view>;  // what stands before a number, and it

// By the first number in the name.
std::optional<Layer> numbered(std::string_view name) {
  std::size_t begin = 0;
  while (begin < name.size() && !is_digit(name[begin])) ++begin;
  std::size_t end = begin;
  while (end < name.size() && is_digit(name[end])) ++end;
  if (begin == end) return std::nullopt;
  return Layer(name.substr(0, begin), name.substr(begin, end - begin));
}

// Of each block, the number of its layer; and how many there are.
std::pair<IdVector<BlockId, std::size_t>, std::size_t> layers_of(const Blocks& blocks) {
  const OpGraph& graph = blocks.costs().graph();
  std::map<std::string_view, std::set<std::string_view>> numbers;
  const auto layer_of = [&](OpId op) -> std::optional<Layer> {
    if (blocks.phase_of(op) != Phase::kForward) return std::nullopt;
    return numbered(graph[op].name);
  };
  for (const OpId op : graph.ops())
    if (const auto layer = layer_of(op)) numbers[layer->first].insert(layer->second);

  IdVector<BlockId, std::size_t> layer_number;
  std::map<Layer, std::size_t> known;
  std::size_t now = 0;
  for (const BlockId block : blocks.ids()) {
    for (const OpId op : blocks.ops(block)) {
      const auto layer = layer_of(op);
      if (!layer.has_value() || numbers[layer->first].size() < 2) continue;
      now = known.emplace(*layer, known.size()).first->second;
      break;
    }
    layer_number.push_back(now);
  }
  // Numbers that come and go are no layers: from block to block they only grow.
  for (std::size_t i = 1; i < layer_number.size(); ++i)
    layer_number[BlockId(i)] = std::max(layer_number[BlockId(i)], layer_number[BlockId(i - 1)]);
  return {std::move(layer_number), known.size()};
}

}  // namespace

std::optional<Division> equal_layers(const Blocks& blocks, std::span<const DeviceId> order) {
  if (blocks.size() < order.size()) return std::nullopt;
  auto [layer_number, layers] = layers_of(blocks);
  if (layers < order.size()) {
    layers = blocks.size();
    for (const BlockId block : blocks.ids()) layer_number[block] = block.index();
  }
  Division division{IdVector<BlockId, StageId>(blocks.size(), StageId(0)), {}};
  for (const DeviceId device : order) division.device.push_back(device);
  for (const BlockId block : blocks.ids()) {
    const StageId stage(layer_number[block] * order.size() / layers);
    division.stage_of[block] = stage;
    if (!blocks.may_run(block, division.device[stage])) return std::nullopt;
  }
  return division;
}

}  // namespace baechi::pipeline
