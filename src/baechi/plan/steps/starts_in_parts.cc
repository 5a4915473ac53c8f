// SPDX-License-Identifier: Apache-2.0
#include "baechi/plan/steps/starts_in_parts.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <optional>
#include <set>
#include <utility>

#include "baechi/graph/residency.h"
#include "baechi/plan/residency/stored_units.h"

namespace baechi {
namespace {

constexpr std::array kMoved{0.1, 0.05, 0.025};  // parts, in a search for shares

class Parts {
 public:
  Parts(const CostModel& costs, const DeviceShares& shares)
      : costs_(costs), graph_(costs.graph()), shares_(shares), at_(graph_.num_ops()) {}

  std::optional<SequenceOfOne> take() && {
    cut();
    return beside_those(costs_, std::move(at_), shares_.front().first, false);
  }

 private:
  bool is_cut(OpId op) const { return !graph_[op].variable && !graph_[op].backward; }

 public:
  // What each operator that is cut brings: what it makes, and what its group and the variables that
  // it reads keep, if nothing before it brought that.
  std::vector<std::pair<OpId, double>> brought() const {
    IdVector<OpId, bool> seen(graph_.num_ops());
    const auto kept = [&](OpId op) {
      Bytes bytes;
      for (const OpId member : members_with(graph_, op)) {
        if (seen[member]) continue;
        seen[member] = true;
        bytes += graph_[member].permanent;
        if (!graph_[member].variable) continue;
        for (const TensorId tensor : graph_.outputs(member)) bytes += graph_.home_size(tensor);
      }
      return bytes;
    };
    std::vector<std::pair<OpId, double>> all;
    for (const OpId op : graph_.topological_order()) {
      if (!is_cut(op)) continue;
      Bytes bytes = graph_.output_bytes(op) + kept(op);
      for (const Edge& edge : graph_.in_edges(op))
        if (graph_[edge.from].variable) bytes += kept(edge.from);
      all.emplace_back(op, static_cast<double>(bytes.count()));
    }
    return all;
  }

 private:
  void cut() {
    const auto all = brought();
    double bytes = 0, so_far = 0;
    for (const auto& [op, brings] : all) bytes += brings;
    std::size_t part = 0;
    double limit = bytes * shares_.front().second;
    for (const auto& [op, brings] : all) {
      while (so_far + brings / 2 > limit && part + 1 < shares_.size())
        limit += bytes * shares_[++part].second;
      if (!at_[op].has_value())
        for (const OpId member : members_with(graph_, op)) at_[member] = shares_[part].first;
      so_far += brings;
    }
  }

  const CostModel& costs_;
  const OpGraph& graph_;
  const DeviceShares& shares_;
  IdVector<OpId, std::optional<DeviceId>> at_;
};

}  // namespace

std::vector<OpId> members_with(const OpGraph& graph, OpId op) {
  if (!graph[op].group.has_value()) return {op};
  const auto members = graph.members(*graph[op].group);
  return {members.begin(), members.end()};
}

std::vector<std::pair<Time, DeviceId>> by_time(const CostModel& costs, DeviceId store) {
  const Cluster& cluster = costs.cluster();
  std::vector<std::pair<Time, DeviceId>> devices;
  for (const DeviceId device : cluster.devices()) {
    if (device == store) continue;
    Time time;
    for (const OpId op : costs.graph().ops())
      time += costs.compute_time(op, device).value_or(Time(0));
    devices.emplace_back(time, device);
  }
  std::ranges::stable_sort(devices, [&](const auto& a, const auto& b) {
    return a.first != b.first ? a.first < b.first
                              : cluster[a.second].capacity > cluster[b.second].capacity;
  });
  return devices;
}

std::optional<SequenceOfOne> beside_those(const CostModel& costs,
                                          IdVector<OpId, std::optional<DeviceId>> at,
                                          DeviceId otherwise, bool in_rounds) {
  const OpGraph& graph = costs.graph();
  const auto beside = [&](OpId op) {
    if (graph[op].forward.has_value() && at[*graph[op].forward].has_value())
      return *at[*graph[op].forward];
    for (const bool updates : {true, false})
      for (const Edge& edge : graph.out_edges(op))
        if (graph[op].variable && is_update(graph, edge.to) == updates && at[edge.to].has_value())
          return *at[edge.to];
    for (const Edge& edge : graph.in_edges(op))
      if (at[edge.from].has_value()) return *at[edge.from];
    return otherwise;
  };
  const auto order = graph.topological_order();
  SequenceOfOne one{{}, std::vector<OpId>(order.begin(), order.end()), in_rounds};
  for (const bool variables : {false, true})
    for (const OpId op : order) {
      if (at[op].has_value() || graph[op].variable != variables) continue;
      const DeviceId device = beside(op);
      for (const OpId member : members_with(graph, op)) at[member] = device;
    }
  for (const OpId op : graph.ops()) {
    if (!costs.may_run(op, *at[op])) return std::nullopt;
    one.device.push_back(*at[op]);
  }
  return one;
}

void add_new(std::optional<SequenceOfOne> one, std::vector<SequenceOfOne>& starts) {
  if (one.has_value() && std::ranges::find(starts, *one) == starts.end())
    starts.push_back(*std::move(one));
}

std::optional<SequenceOfOne> in_parts(const CostModel& costs, const DeviceShares& shares) {
  return Parts(costs, shares).take();
}

std::vector<DeviceShares> shares_by_memory(const CostModel& costs) {
  const auto devices = by_time(costs, store_of(costs.cluster()));
  const auto as_fast = static_cast<std::size_t>(std::ranges::count(
      devices, devices.front().first, [](const auto& device) { return device.first; }));
  const auto capacity = [&](const auto& device) {
    return static_cast<double>(costs.cluster()[device.second].capacity.count());
  };
  std::vector<std::size_t> sizes{devices.size(), as_fast, 1};
  sizes.erase(std::unique(sizes.begin(), sizes.end()), sizes.end());
  std::vector<DeviceShares> all;
  for (const std::size_t size : sizes) {
    double there = 0;
    for (std::size_t i = 0; i < size; ++i) there += capacity(devices[i]);
    all.emplace_back();
    for (std::size_t i = 0; i < size; ++i)
      all.back().emplace_back(devices[i].second, capacity(devices[i]) / there);
  }
  const DeviceShares none;
  double bytes = 1, slow = 0, fast = 0;
  for (const auto& [op, brings] : Parts(costs, none).brought()) bytes += brings;
  for (std::size_t i = 0; i < devices.size(); ++i)
    (i < as_fast ? fast : slow) += capacity(devices[i]);
  const double of_slow = std::min(slow / bytes, slow / (slow + fast));
  all.emplace_back();
  for (std::size_t i = as_fast; i < devices.size() + as_fast; ++i) {
    const auto& device = devices[i % devices.size()];
    const bool is_slow = i < devices.size();
    all.back().emplace_back(device.second,
                            capacity(device) * (is_slow ? of_slow / slow : (1 - of_slow) / fast));
  }
  return all;
}

DeviceShares least_shares(const Cluster& cluster, const std::vector<DeviceShares>& from,
                          const std::function<std::optional<double>(const DeviceShares&)>& rate) {
  std::set<DeviceShares> seen;
  DeviceShares best;
  std::optional<double> least;
  const auto is_less = [&](const DeviceShares& shares) {
    if (!seen.insert(shares).second) return false;
    const std::optional<double> rating = rate(shares);
    if (!rating.has_value() || (least.has_value() && *rating >= *least)) return false;
    least = rating;
    best = shares;
    return true;
  };
  for (const DeviceShares& shares : from) is_less(shares);
  const auto differ = [&](DeviceId a, DeviceId b) {
    return cluster[a].capacity != cluster[b].capacity || cluster[a].speed != cluster[b].speed;
  };
  for (const double part : kMoved)
    for (bool shorter = true; shorter;) {
      shorter = false;
      for (std::size_t i = 0; i < best.size(); ++i)
        for (std::size_t j = 0; j < best.size(); ++j) {
          DeviceShares other = best;
          const double moved = std::min(part, other[i].second);
          other[i].second -= moved;
          other[j].second += moved;
          if (i != j && moved > 0) shorter = is_less(other) || shorter;
          other = best;
          std::swap(other[i], other[j]);
          if (i < j && differ(best[i].first, best[j].first)) shorter = is_less(other) || shorter;
        }
    }
  return best;
}

std::vector<SequenceOfOne> starts_in_parts(const CostModel& costs) {
  std::vector<SequenceOfOne> found;
  for (const DeviceShares& shares : shares_by_memory(costs))
    add_new(in_parts(costs, shares), found);
  return found;
}

}  // namespace baechi
