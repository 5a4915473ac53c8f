// SPDX-License-Identifier: Apache-2.0
// Which of whole variables stay, or are streamed, first. Beyond the paper.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "baechi/plan/residency/residency_choice.h"

namespace baechi {
namespace {

constexpr std::int64_t kLargePart = 4;  // of a device's memory: nothing larger is streamed

double needed_until(const OpGraph& graph, const ResidencyStart& start, const StoredUnit& unit) {
  Time last;
  for (const OpId op : unit.members)
    for (const Edge& edge : graph.in_edges(op))
      if (!graph[edge.from].variable) last = std::max(last, start.slots[edge.from].end);
  return static_cast<double>(last.count());
}

}  // namespace

std::vector<std::size_t> units_in_order(const OpGraph& graph, const ResidencyStart& start,
                                        const std::vector<StoredUnit>& units, StayFirst first) {
  std::vector<std::pair<double, std::size_t>> order;
  for (std::size_t i = 0; i < units.size(); ++i) {
    const double spread = std::fmod(static_cast<double>(i) * 0.6180339887498949, 1.0);
    order.emplace_back(first == StayFirst::kLate    ? -needed_until(graph, start, units[i])
                       : first == StayFirst::kLarge ? -static_cast<double>(units[i].bytes.count())
                                                    : spread,
                       i);
  }
  std::ranges::sort(order);
  std::vector<std::size_t> sorted;
  for (const auto& [unused, i] : order) sorted.push_back(i);
  return sorted;
}

std::vector<std::size_t> streamed_units(const OpGraph& graph, const Cluster& cluster,
                                        const ResidencyStart& start,
                                        const std::vector<StoredUnit>& units,
                                        const ResidencyPrefer& prefer) {
  std::vector<std::size_t> streamed;
  if (prefer.streams == 0 && prefer.places.empty()) return streamed;
  std::vector<std::size_t> order = units_in_order(graph, start, units, prefer.streams_first);
  if (prefer.streams_first == StayFirst::kSpread) std::ranges::reverse(order);
  double left = 0;
  for (const StoredUnit& unit : units)
    left += prefer.streams * static_cast<double>(unit.on_host.count());
  for (const std::size_t i : order) {
    const StoredUnit& unit = units[i];
    const auto takes = static_cast<double>(unit.on_host.count());
    const Bytes there = cluster[start.device[unit.members.front()]].capacity;
    const bool may = prefer.streams >= 1 || unit.bytes * kLargePart <= there;
    const bool streams = prefer.place_of(i) == UnitPlace::kAny
                             ? may && takes <= 2 * left
                             : prefer.place_of(i) == UnitPlace::kStreamed;
    if (!unit.may_stream || !streams) continue;
    left -= takes;
    streamed.push_back(i);
  }
  return streamed;
}

}  // namespace baechi
