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
  // The first so many hold no more than they have room for.
  Parts(const CostModel& costs, const std::vector<DeviceId>& devices, std::size_t full = 0)
      : costs_(costs),
        graph_(costs.graph()),
        devices_(devices),
        full_(full),
        at_(graph_.num_ops()) {}

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

  // What each operator that is cut brings: what it makes, and what its group and the variables that
  // it reads keep, if nothing before it brought that.
  std::vector<std::pair<OpId, double>> brought() const {
    IdVector<OpId, bool> seen(graph_.num_ops());
    const auto kept = [&](OpId op) {
      Bytes bytes;
      for (const OpId member : together(op)) {
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

  void cut() {
    const auto all = brought();
    double bytes = 0, there = 0;
    for (const auto& [op, brings] : all) bytes += brings;
    for (std::size_t part = 0; part < devices_.size(); ++part) there += capacity(part);
    double times = bytes / there, there_of_full = 0;  // what a device has, for its share
    for (std::size_t part = 0; part < full_; ++part) there_of_full += capacity(part);
    if (times > 1 && full_ > 0) times = (bytes - there_of_full) / (there - there_of_full);
    const auto share = [&](std::size_t part) {
      return capacity(part) * (part < full_ ? std::min(times, 1.0) : times);
    };
    std::size_t part = 0;
    double so_far = 0, limit = share(0);
    for (const auto& [op, brings] : all) {
      while (so_far + brings / 2 > limit && part + 1 < devices_.size()) limit += share(++part);
      if (!at_[op].has_value()) put(op, devices_[part]);
      so_far += brings;
    }
  }

  double capacity(std::size_t part) const {
    return static_cast<double>(costs_.cluster()[devices_[part]].capacity.count());
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
  const std::size_t full_;
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

void add_new(std::optional<SequenceOfOne> one, std::vector<SequenceOfOne>& starts) {
  if (one.has_value() && std::ranges::find(starts, *one) == starts.end())
    starts.push_back(*std::move(one));
}

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
    add_new(Parts(costs, first).take(), found);
  }
  std::vector<DeviceId> slow_first;
  for (std::size_t i = 0; i < devices.size(); ++i)
    slow_first.push_back(devices[(i + as_fast) % devices.size()].second);
  add_new(Parts(costs, slow_first, devices.size() - as_fast).take(), found);
  return found;
}

}  // namespace baechi
