// SPDX-License-Identifier: Apache-2.0
#include "baechi/plan/fit/memory_needs.h"

#include <algorithm>
#include <cstddef>
#include <functional>
#include <map>
#include <utility>

#include "baechi/base/in_quotes.h"
#include "baechi/base/short_text.h"
#include "baechi/graph/union_find.h"

namespace baechi {
namespace {

bool may_take_no_time(const CostModel& costs, OpId op) {
  for (std::size_t c = 0; c < costs.num_classes(); ++c)
    if (costs.class_times(DeviceClassId(c))[op] == Time(0)) return true;
  return false;
}

// What is on the device beside permanent memory while `op` runs, at least. An operator that takes
// no time frees its inputs at the moment it takes its outputs, so they need not be there together.
Bytes running_need(const CostModel& costs, OpId op) {
  const OpGraph& graph = costs.graph();
  const Bytes made = graph[op].temporary + graph.output_bytes(op);
  Bytes inputs, largest;
  for (const Edge& edge : graph.in_edges(op)) {
    if (!edge.tensor.has_value()) continue;
    inputs += graph.home_size(*edge.tensor);  // a variable is permanent, here or elsewhere
    largest = std::max(largest, graph.home_size(*edge.tensor));
  }
  return may_take_no_time(costs, op) ? std::max(made, largest) : made + inputs;
}

std::string unit_name(const OpGraph& graph, const Unit& unit) {
  return unit_words(graph[unit.ops.front()].name, unit.ops.size());
}

}  // namespace

std::string unit_words(std::string_view first, std::size_t ops) {
  if (ops == 1) return "operator " + in_quotes(first);
  return "the colocation group of operator " + in_quotes(first) + " (" + std::to_string(ops) +
         " operators)";
}

Units::Units(const CostModel& costs)
    : Units(costs, [&] {
        IdVector<OpId, std::uint32_t> alone;
        for (const OpId op : costs.graph().ops()) alone.push_back(op.value());
        return alone;
      }()) {}

Units::Units(const CostModel& costs, const IdVector<OpId, std::uint32_t>& labels)
    : unit_of_(costs.graph().num_ops(), UnitId(0)) {
  const OpGraph& graph = costs.graph();
  const std::size_t n = graph.num_ops();
  UnionFind sets(n);
  for (const GroupId group : graph.groups())
    for (const OpId op : graph.members(group))
      sets.unite(op.value(), graph.members(group)[0].value());

  // Where each set may run, to refuse unions that leave nothing: kept at its smallest member.
  IdVector<OpId, DeviceSetId> may;
  for (const OpId op : graph.ops()) may.push_back(device_sets_.allowed(costs, op));
  for (const OpId op : graph.ops()) {
    DeviceSetId& of_set = may[OpId(sets.find(op.value()))];
    of_set = device_sets_.intersection(of_set, may[op]);
  }
  std::vector<std::optional<std::uint32_t>> of_label(n);
  for (const OpId op : graph.ops()) {
    std::optional<std::uint32_t>& other = of_label[labels[op]];
    if (!other.has_value()) {
      other = op.value();
      continue;
    }
    const std::uint32_t a = sets.find(*other), b = sets.find(op.value());
    const DeviceSetId both = device_sets_.intersection(may[OpId(a)], may[OpId(b)]);
    if (a == b || device_sets_[both].empty()) continue;
    sets.unite(a, b);
    may[OpId(std::min(a, b))] = both;
  }

  std::vector<std::uint32_t> count(n, 0);
  for (const OpId op : graph.ops()) ++count[sets.find(op.value())];
  std::vector<std::size_t> next(n, 0);
  members_.assign(n, OpId(0));
  std::size_t filled = 0;
  for (const OpId op : graph.ops()) {
    const std::uint32_t set = sets.find(op.value());
    if (set == op.value()) {  // its smallest member comes first
      next[set] = filled;
      units_.push_back(
          {std::span<const OpId>(&members_[filled], count[set]), {}, {}, device_sets_[may[op]]});
      filled += count[set];
      unit_of_[op] = UnitId(units_.size() - 1);
    }
    unit_of_[op] = unit_of_[OpId(set)];
    members_[next[set]++] = op;
  }
  for (Unit& unit : units_) {
    Bytes running;
    for (const OpId member : unit.ops) {
      unit.permanent += graph[member].permanent;
      running = std::max(running, running_need(costs, member));
    }
    unit.need = unit.permanent + running;
  }
}

namespace {

// Devices that would do, as a cluster is written in one line: "2xgpu:24GiB".
std::string an_example_of(const OpGraph& graph, OpId op) {
  for (const KindId kind : graph.kinds())
    if (graph.times(kind)[op].has_value())
      return "2x" + std::string(graph.kind_name(kind)) + ":24GiB";
  return "others";
}

// For a unit that no device may run.
std::string why_nowhere(const CostModel& costs, const Unit& unit) {
  const OpGraph& graph = costs.graph();
  const Cluster& cluster = costs.cluster();
  std::string timed, there;
  const auto add = [](std::string& list, std::string_view kind) {
    const std::string quoted = in_quotes(kind);
    if (list.find(quoted) == list.npos) list += (list.empty() ? "" : ", ") + quoted;
  };
  for (const DeviceId device : cluster.devices()) add(there, cluster[device].kind);
  for (const OpId op : unit.ops) {
    const bool somewhere = std::ranges::any_of(cluster.devices(), [&](DeviceId device) {
      return costs.compute_time(op, device).has_value();
    });
    if (somewhere) continue;
    for (const KindId kind : graph.kinds())
      if (graph.times(kind)[op].has_value()) add(timed, graph.kind_name(kind));
    return "it has compute times for " + timed + ", and the devices are of kind " + there +
           "; name devices of a kind that it has times for, such as " + an_example_of(graph, op) +
           ", or give the graph times for " + there;
  }
  return "its pins and its group's leave none of those that have the right kind";
}

// Those that no device has room for beside the one that lacks most, the neediest first.
std::string others_in_words(const OpGraph& graph, const Units& units, std::vector<UnitId> lacking) {
  constexpr std::size_t kNamed = 3;
  if (lacking.empty()) return "";
  std::ranges::stable_sort(lacking, std::greater<>(), [&](UnitId id) { return units[id].need; });
  std::string text = "; no device has room for ";
  for (std::size_t i = 0; i < std::min(kNamed, lacking.size()); ++i)
    text += (i == 0 ? "" : ", ") + unit_name(graph, units[lacking[i]]) + ", which needs " +
            short_text(units[lacking[i]].need);
  if (lacking.size() > kNamed) text += " and " + std::to_string(lacking.size() - kNamed) + " more";
  return text + ", either";
}

// What units keep for the whole step, by the devices that may run them.
class Kept {
 public:
  void add(const Unit& unit) {
    const auto [at, is_new] = number_of_.try_emplace(unit.devices.data(), sets_.size());
    if (is_new) sets_.emplace_back(unit.devices, Bytes(0));
    sets_[at->second].second += unit.permanent;
  }

  // More than fits: on all devices, or on those of one set for what no other device may run.
  std::optional<CannotFit> too_much(const Cluster& cluster) const {
    constexpr std::size_t kMostSets = 100;
    std::vector<DeviceId> all;
    for (const DeviceId device : cluster.devices()) all.push_back(device);
    if (auto proof = too_much_on(cluster, all)) return proof;
    for (std::size_t i = 0; i < sets_.size() && sets_.size() <= kMostSets; ++i)
      if (auto proof = too_much_on(cluster, sets_[i].first)) return proof;
    return std::nullopt;
  }

 private:
  std::optional<CannotFit> too_much_on(const Cluster& cluster,
                                       std::span<const DeviceId> devices) const {
    Bytes total, capacity;
    for (const auto& [those, bytes] : sets_)
      if (std::ranges::includes(devices, those)) total += bytes;
    for (const DeviceId device : devices) capacity += cluster[device].capacity;
    if (total <= capacity) return std::nullopt;
    const bool all = devices.size() == cluster.num_devices();
    std::string reason = "the graph's permanent memory is " + in_words(total) +
                         ", and all devices together have " + in_words(capacity);
    if (!all)
      reason = "the permanent memory of what only " + some_of(cluster, devices) + " may run is " +
               in_words(total) + ", and there are " + in_words(capacity);
    return CannotFit{std::nullopt, total - capacity,
                     reason + ": " + in_words(total - capacity) + " short"};
  }

  static std::string some_of(const Cluster& cluster, std::span<const DeviceId> devices) {
    const std::string first = in_quotes(cluster[devices.front()].name);
    if (devices.size() == 1) return first;
    const std::string last = in_quotes(cluster[devices.back()].name);
    if (devices.size() == 2) return first + " and " + last;
    if (devices.back().value() - devices.front().value() + 1 == devices.size())
      return first + " to " + last;
    return std::to_string(devices.size()) + " devices (" + first + ", ..., " + last + ")";
  }

  std::map<const DeviceId*, std::size_t> number_of_;  // by where a set is kept
  std::vector<std::pair<std::span<const DeviceId>, Bytes>> sets_;
};

}  // namespace

std::optional<CannotFit> prove_cannot_fit(const CostModel& costs, const Units& units) {
  const OpGraph& graph = costs.graph();
  const Cluster& cluster = costs.cluster();
  Kept kept;
  std::optional<CannotFit> worst;
  std::optional<UnitId> neediest;
  std::vector<UnitId> lacking;
  for (const UnitId id : units.keys()) {
    const Unit& unit = units[id];
    if (unit.devices.empty())
      return CannotFit{unit.ops.front(), Bytes(0),
                       unit_name(graph, unit) + " cannot run on any device of this cluster: " +
                           why_nowhere(costs, unit)};
    kept.add(unit);
    Bytes largest;
    for (const DeviceId device : unit.devices)
      largest = std::max(largest, cluster[device].capacity);
    if (unit.need <= largest) continue;
    lacking.push_back(id);
    if (worst.has_value() && unit.need - largest <= worst->short_by) continue;
    neediest = id;
    worst = CannotFit{unit.ops.front(), unit.need - largest,
                      unit_name(graph, unit) + " needs " + in_words(unit.need) +
                          " while it runs, and the largest device that may run it has " +
                          in_words(largest) + ": " + in_words(unit.need - largest) + " short"};
  }
  if (worst.has_value()) {
    std::erase(lacking, *neediest);
    worst->reason += others_in_words(graph, units, std::move(lacking));
    return worst;
  }
  return kept.too_much(cluster);
}

}  // namespace baechi
