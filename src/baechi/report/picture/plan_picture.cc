// SPDX-License-Identifier: Apache-2.0
#include "baechi/report/picture/plan_picture.h"

#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <utility>

namespace baechi {
namespace {

constexpr std::size_t kMostParts = 16;  // of a name

// Eight light fills that stay apart in print and for most colour-blind readers.
constexpr std::array<std::string_view, 8> kFills{"#a6cee3", "#fdbf6f", "#b2df8a", "#fb9a99",
                                                 "#cab2d6", "#ffff99", "#c7e9e4", "#e0e0e0"};

// The first `parts` parts of a name; all of it when it has no more.
std::string_view beginning(std::string_view name, std::size_t parts) {
  std::size_t at = 0;
  for (std::size_t i = 0; i < parts; ++i) {
    at = name.find_first_of("/.", at);
    if (at == std::string_view::npos) return name;
    ++at;
  }
  return at == 0 ? std::string_view("all") : name.substr(0, at - 1);
}

using NodeOf = IdVector<OpId, std::size_t>;

std::vector<PictureEdge> edges_between(const OpGraph& graph, const NodeOf& node_of) {
  std::map<std::pair<std::size_t, std::size_t>, PictureEdge> edges;
  std::set<std::pair<TensorId, std::size_t>> seen;  // tensors and where they have been counted
  for (const OpId op : graph.ops())
    for (const Edge& edge : graph.out_edges(op)) {
      const std::size_t from = node_of[op], to = node_of[edge.to];
      if (from == to) continue;
      PictureEdge& drawn =
          edges.try_emplace({from, to}, PictureEdge{from, to, Bytes(0), true}).first->second;
      if (!edge.tensor.has_value()) continue;
      drawn.control = false;
      if (seen.emplace(*edge.tensor, to).second) drawn.bytes += graph.size(*edge.tensor);
    }
  std::vector<PictureEdge> list;
  for (const auto& [ends, edge] : edges) list.push_back(edge);
  return list;
}

PlanPicture operators_picture(const OpGraph& graph, const Plan& plan) {
  PlanPicture picture;
  std::vector<OpId> order(graph.ops().begin(), graph.ops().end());
  std::ranges::stable_sort(order, {}, [&](OpId op) { return plan.schedule.slots[op].device; });
  NodeOf node_of(graph.num_ops(), 0);
  for (const OpId op : order) {
    const OpSlot& slot = plan.schedule.slots[op];
    node_of[op] = picture.nodes.size();
    picture.nodes.push_back({.name = std::string(graph[op].name),
                             .kind = std::string(graph[op].kind),
                             .device = slot.device,
                             .operators = 1,
                             .time = slot.end - slot.start,
                             .start = slot.start,
                             .group = {}});
    if (const auto group = graph[op].group; group.has_value() && graph.members(*group).size() > 1)
      picture.nodes.back().group = group;
  }
  picture.edges = edges_between(graph, node_of);
  return picture;
}

PlanPicture parts_picture(const OpGraph& graph, const Plan& plan, std::size_t parts) {
  std::map<std::pair<DeviceId, std::string_view>, PictureNode> nodes;
  const auto key = [&](OpId op) {
    return std::pair(plan.schedule.slots[op].device, beginning(graph[op].name, parts));
  };
  for (const OpId op : graph.ops()) {
    const OpSlot& slot = plan.schedule.slots[op];
    PictureNode& node = nodes[key(op)];
    node.start = node.operators == 0 ? slot.start : std::min(node.start, slot.start);
    ++node.operators;
    node.time += slot.end - slot.start;
  }
  PlanPicture picture;
  std::map<std::pair<DeviceId, std::string_view>, std::size_t> number;
  for (auto& [device_and_name, node] : nodes) {
    node.device = device_and_name.first;
    node.name = device_and_name.second;
    number.emplace(device_and_name, picture.nodes.size());
    picture.nodes.push_back(std::move(node));
  }
  NodeOf node_of(graph.num_ops(), 0);
  for (const OpId op : graph.ops()) node_of[op] = number.at(key(op));
  picture.edges = edges_between(graph, node_of);
  return picture;
}

// The parts alone, however few the operators are.
PlanPicture plan_parts(const OpGraph& graph, const Plan& plan, std::size_t max_nodes) {
  for (std::size_t parts = kMostParts; parts > 0; --parts) {
    std::set<std::pair<DeviceId, std::string_view>> names;
    for (const OpId op : graph.ops()) {
      names.emplace(plan.schedule.slots[op].device, beginning(graph[op].name, parts));
      if (names.size() > max_nodes) break;
    }
    if (names.size() <= max_nodes) return parts_picture(graph, plan, parts);
  }
  return parts_picture(graph, plan, 0);
}

}  // namespace

std::string_view device_fill(DeviceId device) { return kFills[device.index() % kFills.size()]; }

PlanPicture plan_picture(const OpGraph& graph, const Plan& plan, std::size_t max_nodes) {
  return graph.num_ops() <= max_nodes ? operators_picture(graph, plan)
                                      : plan_parts(graph, plan, max_nodes);
}

}  // namespace baechi
