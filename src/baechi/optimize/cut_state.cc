// SPDX-License-Identifier: Apache-2.0
#include "baechi/optimize/cut_state.h"

#include <algorithm>
#include <optional>
#include <utility>

namespace baechi {

CutState::CutState(const CutGraph& graph, const DeviceCaps& caps, CutPart part)
    : graph_(graph),
      caps_(caps),
      part_(std::move(part)),
      load_(caps.size()),
      counts_(graph.cost.size() * caps.size(), 0) {
  for (const CutUnitId unit : graph.units.keys()) {
    load_[part_[unit]].work += graph.units[unit].work;
    load_[part_[unit]].memory += graph.units[unit].memory;
  }
  for (const NetId net : graph.cost.keys()) {
    std::int64_t touched = -1;
    for (const CutUnitId unit : graph.pins[net]) touched += count(net, part_[unit])++ == 0;
    cut_ += touched * graph.cost[net];
  }
}

std::int64_t CutState::excess() const {
  const auto over = [](std::int64_t load, std::int64_t cap) {
    return load <= cap ? 0 : 1 + (load - cap) / std::max<std::int64_t>(1, cap / 1000);
  };
  std::int64_t sum = 0;
  for (const DeviceId device : caps_.keys())
    sum += over(load_[device].work, caps_[device].work) +
           over(load_[device].memory, caps_[device].memory);
  return sum;
}

std::int64_t CutState::gain(CutUnitId unit, DeviceId to) const {
  const DeviceId from = part_[unit];
  std::int64_t gain = 0;
  for (const NetId net : graph_.nets[unit]) {
    if (count(net, from) == 1) gain += graph_.cost[net];
    if (count(net, to) == 0) gain -= graph_.cost[net];
  }
  return gain;
}

void CutState::move(CutUnitId unit, DeviceId to) {
  const DeviceId from = part_[unit];
  cut_ -= gain(unit, to);
  for (const NetId net : graph_.nets[unit]) {
    --count(net, from);
    ++count(net, to);
  }
  load_[from].work -= graph_.units[unit].work;
  load_[from].memory -= graph_.units[unit].memory;
  load_[to].work += graph_.units[unit].work;
  load_[to].memory += graph_.units[unit].memory;
  part_[unit] = to;
}

bool CutState::has_room(CutUnitId unit, DeviceId to) const {
  const CutUnit& u = graph_.units[unit];
  return (u.devices >> to.index() & 1) != 0 && load_[to].work + u.work <= caps_[to].work &&
         load_[to].memory + u.memory <= caps_[to].memory;
}

bool CutState::overloaded(DeviceId device) const {
  return load_[device].work > caps_[device].work || load_[device].memory > caps_[device].memory;
}

bool CutState::improve_one(CutUnitId unit) {
  const DeviceId from = part_[unit];
  const bool anywhere = overloaded(from);  // then any move to where there is room helps
  std::optional<DeviceId> best;
  std::int64_t best_gain = 0;
  for (const DeviceId to : caps_.keys()) {
    if (to == from || !has_room(unit, to)) continue;
    const std::int64_t g = gain(unit, to);
    const bool evens = g == 0 && load_[to].work + graph_.units[unit].work < load_[from].work;
    if (best.has_value() ? g > best_gain : (g > 0 || anywhere || evens)) {
      best = to;
      best_gain = g;
    }
  }
  if (best.has_value()) move(unit, *best);
  return best.has_value();
}

void CutState::improve(Random& random, int passes) {
  std::vector<CutUnitId> order;
  for (const CutUnitId unit : graph_.units.keys()) order.push_back(unit);
  for (bool moved = true; moved && passes > 0; --passes) {
    moved = false;
    for (std::size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[random.below(i)]);
    for (const CutUnitId unit : order) moved = improve_one(unit) || moved;
  }
}

void CutState::climb(int passes) {
  while (passes-- > 0 && climb_once()) {
  }
}

bool CutState::climb_once() {
  constexpr std::size_t kPatience = 60;  // moves without a new best
  const std::size_t k = caps_.size();
  std::vector<std::int64_t> gains(graph_.units.size() * k);
  const auto refresh = [&](CutUnitId unit) {
    for (const DeviceId to : caps_.keys())
      gains[unit.index() * k + to.index()] = to == part_[unit] ? 0 : gain(unit, to);
  };
  for (const CutUnitId unit : graph_.units.keys()) refresh(unit);

  std::vector<CutUnitId> free;
  for (const CutUnitId unit : graph_.units.keys()) free.push_back(unit);
  std::vector<std::pair<CutUnitId, DeviceId>> moves;  // and where from
  std::size_t kept = 0;
  std::int64_t best_cut = cut_;
  while (!free.empty() && moves.size() - kept <= kPatience) {
    std::optional<std::size_t> at;
    DeviceId best_to(0);
    std::int64_t best_gain = 0;
    for (std::size_t i = 0; i < free.size(); ++i)
      for (const DeviceId to : caps_.keys()) {
        const std::int64_t g = gains[free[i].index() * k + to.index()];
        if (to == part_[free[i]] || (at.has_value() && g <= best_gain) || !has_room(free[i], to))
          continue;
        at = i;
        best_to = to;
        best_gain = g;
      }
    if (!at.has_value()) break;
    const CutUnitId unit = free[*at];
    free[*at] = free.back();
    free.pop_back();
    moves.emplace_back(unit, part_[unit]);
    move(unit, best_to);
    for (const NetId net : graph_.nets[unit])
      for (const CutUnitId other : graph_.pins[net]) refresh(other);
    if (cut_ < best_cut) {
      best_cut = cut_;
      kept = moves.size();
    }
  }
  for (; moves.size() > kept; moves.pop_back()) move(moves.back().first, moves.back().second);
  return kept > 0;
}

}  // namespace baechi
