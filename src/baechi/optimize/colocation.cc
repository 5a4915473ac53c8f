// SPDX-License-Identifier: Apache-2.0
#include "baechi/optimize/colocation.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "baechi/optimize/contraction.h"
#include "baechi/optimize/grouping.h"
#include "baechi/optimize/pass_clock.h"
#include "baechi/optimize/plan_order.h"

namespace baechi {
namespace {

// From place `at` of the topological order on, a group's device holds so much more (or less).
struct Change {
  std::uint32_t at;
  Bytes bytes;
};

// What the group's device holds over the topological order. A share of memory that ends with an
// operator is given back at the next place.
class GroupChanges {
 public:
  explicit GroupChanges(const OpGraph& graph) : graph_(graph), rank_(graph.num_ops()) {
    std::uint32_t next = 0;
    for (const OpId op : graph.topological_order()) rank_[op] = next++;
  }

  IdVector<GroupId, Bytes> peaks() {
    IdVector<GroupId, Bytes> peaks(graph_.num_groups());
    for (const GroupId group : graph_.groups()) {
      changes_.clear();
      Bytes held;
      for (const OpId op : graph_.members(group)) {
        held += graph_[op].permanent;
        add(rank_[op], rank_[op], graph_[op].temporary);
        add_outputs(op);
        add_copies(group, op);
      }
      std::sort(changes_.begin(), changes_.end(), [](const Change& a, const Change& b) {
        return a.at != b.at ? a.at < b.at : a.bytes < b.bytes;
      });
      peaks[group] = held;
      for (const Change& change : changes_)
        peaks[group] = std::max(peaks[group], held += change.bytes);
    }
    return peaks;
  }

 private:
  void add(std::uint32_t first, std::uint32_t last, Bytes bytes) {
    if (bytes == Bytes(0)) return;
    changes_.push_back({first, bytes});
    changes_.push_back({last + 1, Bytes(0) - bytes});
  }
  std::uint32_t end() const { return static_cast<std::uint32_t>(graph_.num_ops()); }

  void add_outputs(OpId op) {
    for (const TensorId tensor : graph_.outputs(op)) {
      std::uint32_t last = rank_[op];
      for (const Edge& edge : graph_.consumers(tensor)) last = std::max(last, rank_[edge.to]);
      if (graph_.retains_outputs(op) || graph_.consumers(tensor).empty()) last = end();
      add(rank_[op], last, graph_.home_size(tensor));
    }
  }
  // A copy counts once for the group, at its consumer in the group with the smallest id.
  void add_copies(GroupId group, OpId op) {
    for (const Edge& edge : graph_.in_edges(op)) {
      if (!edge.tensor.has_value() || graph_[edge.from].group == group) continue;
      std::optional<OpId> first;
      std::uint32_t last = 0;
      for (const Edge& use : graph_.consumers(*edge.tensor)) {
        if (graph_[use.to].group != group) continue;
        if (!first.has_value()) first = use.to;
        last = std::max(last, rank_[use.to]);
      }
      if (first == op)
        add(rank_[edge.from], graph_.retains_outputs(edge.from) ? end() : last,
            graph_.size(*edge.tensor));
    }
  }

  const OpGraph& graph_;
  IdVector<OpId, std::uint32_t> rank_;
  std::vector<Change> changes_;
};

std::optional<DeviceId> dominant_device(const CostModel& costs, GroupId group,
                                        const Placement& placement, PostAdjust strategy) {
  const OpGraph& graph = costs.graph();
  IdVector<DeviceId, std::int64_t> weight(costs.cluster().num_devices());
  for (const OpId op : graph.members(group)) {
    const DeviceId device = placement[op];
    switch (strategy) {
      case PostAdjust::kComputeDominant:
        weight[device] += costs.compute_time(op, device).value_or(Time(0)).count();
        break;
      case PostAdjust::kMemoryDominant:
        weight[device] +=
            (graph[op].permanent + graph[op].temporary + graph.output_bytes(op)).count();
        break;
      case PostAdjust::kMajority:
        ++weight[device];
        break;
    }
  }
  std::optional<DeviceId> best;
  for (const DeviceId device : weight.keys())
    if (costs.group_may_run(group, device) && (!best.has_value() || weight[device] > weight[*best]))
      best = device;
  return best;
}

}  // namespace

OpLabels colocation_labels(const OpGraph& graph, const ColocationOptions& options) {
  return options.mode == ColocationMode::kCoAdjust ? group_labels(graph) : each_alone(graph);
}

std::string describe(const ColocationOptions& options) {
  return options.mode == ColocationMode::kCoAdjust ? "" : "groups are ignored while placing";
}

Optimized colocate(const CostModel& costs, const ColocationOptions& options) {
  const OpGraph& graph = costs.graph();
  const PassClock clock("colocate", graph);
  Contracted same = contract(graph, each_alone(graph), colocation_labels(graph, options));
  PassStatistics statistics = clock.stop(same.graph, describe(options));
  return {std::move(same.graph), std::move(same.expansion), {std::move(statistics)}};
}

IdVector<GroupId, Bytes> group_memory(const OpGraph& graph) { return GroupChanges(graph).peaks(); }

std::span<const PostAdjustName> post_adjust_names() {
  static constexpr std::array<PostAdjustName, 3> kNames{{
      {PostAdjust::kComputeDominant, "compute-dominant"},
      {PostAdjust::kMemoryDominant, "memory-dominant"},
      {PostAdjust::kMajority, "majority"},
  }};
  return kNames;
}

PlacedGraph post_adjust(const CostModel& costs, const PlacedGraph& placed, PostAdjust strategy) {
  const OpGraph& graph = costs.graph();
  PlacedGraph adjusted{placed.device, std::nullopt};
  for (const GroupId group : graph.groups()) {
    const std::optional<DeviceId> device = dominant_device(costs, group, placed.device, strategy);
    if (!device.has_value()) continue;
    for (const OpId op : graph.members(group)) adjusted.device[op] = *device;
  }
  if (placed.order.has_value())
    adjusted.order = device_order(plan_order(graph, *placed.order), adjusted.device,
                                  costs.cluster().num_devices());
  return adjusted;
}

}  // namespace baechi
