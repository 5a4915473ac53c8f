// SPDX-License-Identifier: Apache-2.0
// What packing starts from.
#include <algorithm>
#include <utility>

#include "baechi/place/topological_sequences.h"
#include "baechi/plan/fit/fit_search.h"

namespace baechi {

std::array<FitSearch::Sequence, 2> FitSearch::sequences() const {
  const OpGraph& graph = costs_.graph();
  return {depth_first_sequence(graph),
          Sequence(graph.topological_order().begin(), graph.topological_order().end())};
}

// Into segments for the devices in their order, and in the other one.
std::array<FitSearch::Assignment, 2> FitSearch::cuts(const Sequence& sequence) const {
  const std::vector<DeviceId> devices(costs_.cluster().devices().begin(),
                                      costs_.cluster().devices().end());
  return {segments(sequence, devices), segments(sequence, {devices.rbegin(), devices.rend()})};
}

// Cuts the sequence into one segment per device, in the given device order, sized by capacity.
FitSearch::Assignment FitSearch::segments(const Sequence& sequence,
                                          const std::vector<DeviceId>& devices) const {
  const Cluster& cluster = costs_.cluster();
  const OpGraph& graph = costs_.graph();
  const auto weight = [&](OpId op) {
    return static_cast<double>((graph[op].permanent + graph.output_bytes(op)).count());
  };
  double total = 0, capacity = 0;
  for (const OpId op : sequence) total += weight(op);
  for (const DeviceId device : devices)
    capacity += static_cast<double>(cluster[device].capacity.count());

  Assignment assignment(units_.size(), devices.front());
  IdVector<UnitId, char> seen(units_.size());
  std::size_t at = 0;
  double filled = 0,
         share = static_cast<double>(cluster[devices[0]].capacity.count()) / capacity * total;
  for (const OpId op : sequence) {
    filled += weight(op);
    while (filled > share && at + 1 < devices.size())
      share += static_cast<double>(cluster[devices[++at]].capacity.count()) / capacity * total;
    const UnitId unit = units_.of(op);
    if (std::exchange(seen[unit], 1) != 0) continue;
    const auto& allowed = units_[unit].devices;
    const bool may = std::find(allowed.begin(), allowed.end(), devices[at]) != allowed.end();
    assignment[unit] = may ? devices[at] : allowed.front();
  }
  return assignment;
}

// Units by falling need, each to the device that then has the most room.
FitSearch::Assignment FitSearch::largest_first() const {
  std::vector<UnitId> by_need(units_.keys().begin(), units_.keys().end());
  std::stable_sort(by_need.begin(), by_need.end(),
                   [&](UnitId a, UnitId b) { return units_[a].need > units_[b].need; });
  IdVector<DeviceId, Bytes> left;
  for (const DeviceId device : costs_.cluster().devices())
    left.push_back(costs_.cluster()[device].capacity);
  Assignment assignment(units_.size(), DeviceId(0));
  for (const UnitId unit : by_need) {
    const auto& allowed = units_[unit].devices;
    assignment[unit] = *std::max_element(allowed.begin(), allowed.end(),
                                         [&](DeviceId a, DeviceId b) { return left[a] < left[b]; });
    left[assignment[unit]] -= units_[unit].permanent;
  }
  return assignment;
}

// Along the sequence, stays on the current device while the permanent memory there has room.
FitSearch::Assignment FitSearch::frugal(const Sequence& sequence) const {
  IdVector<DeviceId, Bytes> left;
  for (const DeviceId device : costs_.cluster().devices())
    left.push_back(costs_.cluster()[device].capacity);
  Assignment assignment(units_.size(), DeviceId(0));
  IdVector<UnitId, char> seen(units_.size());
  std::optional<DeviceId> current;
  for (const OpId op : sequence) {
    const UnitId unit = units_.of(op);
    if (std::exchange(seen[unit], 1) != 0) continue;
    const auto& allowed = units_[unit].devices;
    const auto has_room = [&](DeviceId device) { return left[device] >= units_[unit].need; };
    if (!current.has_value() || !has_room(*current) ||
        std::find(allowed.begin(), allowed.end(), *current) == allowed.end()) {
      const auto first = std::find_if(allowed.begin(), allowed.end(), has_room);
      current = first != allowed.end()
                    ? *first
                    : *std::max_element(allowed.begin(), allowed.end(),
                                        [&](DeviceId a, DeviceId b) { return left[a] < left[b]; });
    }
    assignment[unit] = *current;
    left[*current] -= units_[unit].permanent;
  }
  return assignment;
}

}  // namespace baechi
