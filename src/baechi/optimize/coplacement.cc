// SPDX-License-Identifier: Apache-2.0
#include "baechi/optimize/coplacement.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <limits>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "baechi/base/short_text.h"
#include "baechi/optimize/grouping.h"
#include "baechi/optimize/pass_clock.h"

namespace baechi {
namespace {

GroupCaps caps_of(const CostModel& costs, const CoplacementOptions& options) {
  if (!options.capped)
    return {Time(std::numeric_limits<std::int64_t>::max()),
            Bytes(std::numeric_limits<std::int64_t>::max())};
  const IdVector<OpId, Time> work = mean_work(costs);
  const Time total = std::accumulate(work.begin(), work.end(), Time(0));
  const double share =
      static_cast<double>(total.count()) / static_cast<double>(costs.cluster().num_devices());
  const auto capacity = static_cast<double>(costs.cluster().largest_capacity().count());
  return {Time(static_cast<std::int64_t>(share * options.work_share)),
          Bytes(static_cast<std::int64_t>(capacity * options.memory_share))};
}

// The one operator that reads what `op` produces, if there is exactly one.
std::optional<OpId> only_consumer(const OpGraph& graph, OpId op) {
  std::optional<OpId> only;
  for (const Edge& edge : graph.out_edges(op)) {
    if (!edge.tensor.has_value()) break;  // control edges come last
    if (only.has_value() && *only != edge.to) return std::nullopt;
    only = edge.to;
  }
  return only;
}

// Of a variable: wherever it is, its other readers get a copy at most.
std::optional<OpId> first_reader(const OpGraph& graph, const IdVector<OpId, std::size_t>& rank,
                                 OpId variable) {
  std::optional<OpId> first;
  for (const Edge& edge : graph.out_edges(variable))
    if (edge.tensor.has_value() && (!first.has_value() || rank[edge.to] < rank[*first]))
      first = edge.to;
  return first;
}

// Digits to the end, at least one.
bool is_number(std::string_view text) {
  return !text.empty() && std::ranges::all_of(text, [](char c) { return '0' <= c && c <= '9'; });
}

// Attention alone does not make a model recurrent.
bool has_cells(const OpGraph& graph) {
  return std::ranges::any_of(graph.ops(), [&](OpId op) {
    const std::string_view cell = cell_of(graph[op].name);
    return !cell.empty() && !cell.ends_with("attention");
  });
}

// Counts what it unites.
using Unite = std::function<void(OpId, OpId, std::size_t&)>;

void unite_cells(const OpGraph& graph, const Unite& unite, Coplacement& result) {
  std::unordered_map<std::string_view, OpId> first;
  for (const OpId op : graph.topological_order()) {
    const Operator& one = graph[op];
    if (one.forward.has_value()) {
      if (!cell_of(graph[*one.forward].name).empty()) unite(op, *one.forward, result.by_forward);
    } else if (const std::string_view cell = cell_of(one.name); !cell.empty()) {
      unite(op, first.try_emplace(cell, op).first->second, result.by_cell);
    }
  }
}

void unite_neighbours(const OpGraph& graph, const CoplacementOptions& options, const Unite& unite,
                      Coplacement& result) {
  IdVector<OpId, std::size_t> rank(graph.num_ops());
  for (std::size_t i = 0; i < rank.size(); ++i) rank[graph.topological_order()[i]] = i;
  if (options.single_consumer)
    for (const OpId op : graph.topological_order()) {
      const std::optional<OpId> consumer =
          graph[op].variable ? first_reader(graph, rank, op) : only_consumer(graph, op);
      if (consumer.has_value()) unite(op, *consumer, result.by_consumer);
    }
  if (options.backward_to_forward)
    for (const OpId op : graph.topological_order())
      if (graph[op].forward.has_value()) unite(op, *graph[op].forward, result.by_forward);
}

Coplacement by_device(const OpGraph& graph, const ListSchedule& cut) {
  Coplacement result{OpLabels(graph.num_ops()), cut.makespan, cut.placed};
  IdVector<DeviceId, std::optional<OpId>> first(cut.placed.order->size());
  for (const OpId op : graph.ops()) {
    std::optional<OpId>& label = first[cut.placed.device[op]];
    if (!label.has_value()) label = op;
    result.group[op] = label->value();
  }
  return result;
}

}  // namespace

std::span<const CoplacementRuleName> coplacement_rules() {
  static constexpr std::array<CoplacementRuleName, 3> kRules{{
      {CoplacementRule::kCut, "cut", "one group per device, cut where little has to be sent"},
      {CoplacementRule::kNeighbours, "neighbours",
       "an operator with its only consumer, and a backward operator with its forward one"},
      {CoplacementRule::kNone, "none", "colocation groups alone"},
  }};
  return kRules;
}

std::string_view cell_of(std::string_view name) {
  for (std::size_t begin = 0; begin < name.size();) {
    const std::size_t end = std::min(name.find('/', begin), name.size());
    const std::string_view part = name.substr(begin, end - begin);
    if (part == "attention" || (part.starts_with("cell_") && is_number(part.substr(5))))
      return name.substr(0, end);
    begin = end + 1;
  }
  return {};
}

Coplacement find_coplacements(const CostModel& costs, const OpLabels& group,
                              const CoplacementOptions& options) {
  const OpGraph& graph = costs.graph();
  if (options.rule == CoplacementRule::kCut)
    if (const std::optional<DeviceCut> cut = cut_partition(costs, group, options.cut);
        cut.has_value() && cut->over == Bytes(0))
      return by_device(graph, cut->schedule);
  Coplacement result;
  if (options.rule == CoplacementRule::kNone) {
    result.group = group;
    return result;
  }
  Grouping grouping(costs, group, caps_of(costs, options));
  const Unite unite = [&](OpId a, OpId b, std::size_t& counter) {
    if (grouping.together(a, b)) return;
    ++(grouping.unite(a, b) ? counter : result.capped);
  };
  if (options.cells_alone && has_cells(graph))
    unite_cells(graph, unite, result);
  else
    unite_neighbours(graph, options, unite, result);
  result.group = grouping.labels();
  return result;
}

std::string describe(const Coplacement& found) {
  if (found.cut.has_value())
    return "one group per device, cut for a step of " + short_text(*found.cut);
  if (found.by_cell > 0)
    return std::to_string(found.by_cell) + " unions within a cell or attention, " +
           std::to_string(found.by_forward) + " with a forward operator there";
  return std::to_string(found.by_consumer) + " unions with a consumer, " +
         std::to_string(found.by_forward) + " with a forward operator, " +
         std::to_string(found.capped) + " forbidden by a cap";
}

Optimized coplace(const CostModel& costs, const CoplacementOptions& options) {
  const OpGraph& graph = costs.graph();
  const PassClock clock("coplace", graph);
  const Coplacement found = find_coplacements(costs, group_labels(graph), options);
  Contracted small = contract(graph, each_alone(graph), found.group);
  PassStatistics statistics = clock.stop(small.graph, describe(found));
  return {std::move(small.graph), std::move(small.expansion), {std::move(statistics)}, found.home};
}

}  // namespace baechi
