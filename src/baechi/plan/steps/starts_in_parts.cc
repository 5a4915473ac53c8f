// SPDX-License-Identifier: Apache-2.0
#include "baechi/plan/steps/starts_in_parts.h"

#include <algorithm>
#include <cstddef>
#include <optional>
#include <utility>

#include "baechi/plan/residency/stored_units.h"

namespace baechi {
namespace {

class Parts {
 public:
  Parts(const CostModel& costs, const std::vector<DeviceId>& devices)
      : costs_(costs), graph_(costs.graph()), devices_(devices), at_(graph_.num_ops()) {}

  std::optional<SequenceOfOne> take() && {
    cut();
    const auto order = graph_.topological_order();
    SequenceOfOne one{{}, std::vector<OpId>(order.begin(), order.end())};
    for (const OpId op : order)
      if (!at_[op].has_value()) put(op, beside(op));
    for (const OpId op : graph_.ops()) {
      if (!costs_.may_run(op, *at_[op])) return std::nullopt;
      one.device.push_back(*at_[op]);
    }
    return one;
  }

 private:
  bool is_cut(OpId op) const { return !graph_[op].variable && !graph_[op].backward; }

  std::vector<OpId> together(OpId op) const {
    if (!graph_[op].group.has_value()) return {op};
    const auto members = graph_.members(*graph_[op].group);
    return {members.begin(), members.end()};
  }

  void put(OpId op, DeviceId device) {
    for (const OpId member : together(op)) at_[member] = device;
  }

  // What comes with it that nothing before it brought.
  Bytes brought_by(OpId op) const {
    Bytes bytes = graph_.output_bytes(op);
    if (at_[op].has_value()) return bytes;
    for (const OpId member : together(op)) bytes += graph_[member].permanent;
    return bytes;
  }

  void cut() {
    Bytes all, there;
    for (const OpId op : graph_.ops())
      all += graph_[op].permanent + (is_cut(op) ? graph_.output_bytes(op) : Bytes(0));
    for (const DeviceId device : devices_) there += costs_.cluster()[device].capacity;
    const double bytes = static_cast<double>(all.count()) / static_cast<double>(there.count());
    std::size_t part = 0;
    double so_far = 0, limit = bytes * static_cast<double>(capacity(0));
    for (const OpId op : graph_.topological_order()) {
      if (!is_cut(op)) continue;
      so_far += static_cast<double>(brought_by(op).count());
      if (so_far > limit && part + 1 < devices_.size())
        limit += bytes * static_cast<double>(capacity(++part));
      if (!at_[op].has_value()) put(op, devices_[part]);
    }
  }

  std::int64_t capacity(std::size_t part) const {
    return costs_.cluster()[devices_[part]].capacity.count();
  }

  // Where its forward operator is, what reads a variable, or what it reads.
  DeviceId beside(OpId op) const {
    if (graph_[op].forward.has_value() && at_[*graph_[op].forward].has_value())
      return *at_[*graph_[op].forward];
    if (graph_[op].variable)
      for (const Edge& edge : graph_.out_edges(op))
        if (at_[edge.to].has_value()) return *at_[edge.to];
    for (const Edge& edge : graph_.in_edges(op))
      if (at_[edge.from].has_value()) return *at_[edge.from];
    return devices_.front();
  }

  const CostModel& costs_;
  const OpGraph& graph_;
  const std::vector<DeviceId>& devices_;
  IdVector<OpId, std::optional<DeviceId>> at_;
};

// How long it takes for all that it may run, the fastest first; of the fastest, the largest.
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

}  // namespace

std::vector<SequenceOfOne> starts_in_parts(const CostModel& costs) {
  const auto devices = by_time(costs, store_of(costs.cluster()));
  const auto as_fast = static_cast<std::size_t>(std::ranges::count(
      devices, devices.front().first, [](const auto& device) { return device.first; }));
  std::vector<std::size_t> sizes{devices.size(), as_fast, 1};
  sizes.erase(std::unique(sizes.begin(), sizes.end()), sizes.end());
  std::vector<SequenceOfOne> found;
  for (const std::size_t size : sizes) {
    std::vector<DeviceId> first;
    for (std::size_t i = 0; i < size; ++i) first.push_back(devices[i].second);
    if (auto one = Parts(costs, first).take()) found.push_back(*std::move(one));
  }
  return found;
}

}  // namespace baechi
