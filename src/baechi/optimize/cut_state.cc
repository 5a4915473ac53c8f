// SPDX-License-Identifier: Apache-2.0
#include "baechi/optimize/cut_state.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <optional>
#include <utility>

namespace baechi {
namespace {

std::uint64_t bit_of(DeviceId device) { return std::uint64_t{1} << device.index(); }

// One bit after the other, the lowest first.
template <class Visit>
void for_each_device(std::uint64_t bits, const Visit& visit) {
  for (; bits != 0; bits &= bits - 1)
    visit(DeviceId(static_cast<std::uint32_t>(std::countr_zero(bits))));
}

}  // namespace

CutState::CutState(const CutGraph& graph, const DeviceCaps& caps)
    : graph_(graph),
      caps_(caps),
      load_(caps.size()),
      counts_(graph.cost.size() * caps.size()),
      on_(graph.cost.size()),
      mark_(graph.units.size(), Mark::kNone),
      gains_(caps.size()) {}

void CutState::start_from(CutPart part) {
  part_ = std::move(part);
  std::fill(load_.begin(), load_.end(), DeviceCap{});
  std::fill(counts_.begin(), counts_.end(), 0U);
  std::fill(on_.begin(), on_.end(), Devices{});
  for (const CutUnitId unit : graph_.units.keys()) {
    load_[part_[unit]].work += graph_.units[unit].work;
    load_[part_[unit]].memory += graph_.units[unit].memory;
  }
  cut_ = 0;
  for (const NetId net : graph_.cost.keys()) {
    for (const CutUnitId unit : graph_.pins[net]) join(net, part_[unit]);
    cut_ += (std::popcount(on_[net].touched) - 1) * graph_.cost[net];
  }
}

std::uint64_t CutState::all_but(DeviceId device) const {
  return ~std::uint64_t{0} >> (kMaxCutDevices - caps_.size()) & ~bit_of(device);
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

// What the cut would lose if the unit moved to each of the devices. What it gains is the same
// wherever it has no neighbour.
CutState::Gain CutState::find_gains(CutUnitId unit, std::int64_t* gains) const {
  const DeviceId from = part_[unit];
  Gain gain;
  std::fill_n(gains, caps_.size(), 0);
  for (const NetId net : graph_.nets[unit]) {
    const auto [touched, single] = on_[net];
    const std::int64_t cost = graph_.cost[net];
    gain.neighbours |= touched;
    gain.elsewhere -= (single & bit_of(from)) != 0 ? 0 : cost;
    for_each_device(touched, [&](DeviceId to) { gains[to.index()] += cost; });
  }
  gain.neighbours &= ~bit_of(from);
  for (std::size_t i = 0; i < caps_.size(); ++i) gains[i] += gain.elsewhere;
  return gain;
}

void CutState::join(NetId net, DeviceId device) {
  const std::uint32_t pins = ++counts(net)[device.index()];
  on_[net].touched |= bit_of(device);
  if (pins == 1) on_[net].single |= bit_of(device);
  if (pins == 2) on_[net].single &= ~bit_of(device);
}

void CutState::leave(NetId net, DeviceId device) {
  const std::uint32_t pins = --counts(net)[device.index()];
  if (pins == 0) on_[net] = {on_[net].touched & ~bit_of(device), on_[net].single & ~bit_of(device)};
  if (pins == 1) on_[net].single |= bit_of(device);
}

void CutState::move(CutUnitId unit, DeviceId to, std::int64_t gain) {
  const DeviceId from = part_[unit];
  cut_ -= gain;
  for (const NetId net : graph_.nets[unit]) {
    leave(net, from);
    join(net, to);
  }
  load_[from].work -= graph_.units[unit].work;
  load_[from].memory -= graph_.units[unit].memory;
  load_[to].work += graph_.units[unit].work;
  load_[to].memory += graph_.units[unit].memory;
  part_[unit] = to;
}

bool CutState::has_room(CutUnitId unit, DeviceId to, const DeviceCap& load) const {
  const CutUnit& u = graph_.units[unit];
  return (u.devices >> to.index() & 1) != 0 && load.work + u.work <= caps_[to].work &&
         load.memory + u.memory <= caps_[to].memory;
}

bool CutState::overloaded(DeviceId device) const {
  return load_[device].work > caps_[device].work || load_[device].memory > caps_[device].memory;
}

void CutState::list(CutUnitId unit) {
  if (mark_[unit] != Mark::kNone) return;
  mark_[unit] = Mark::kListed;
  listed_.push_back(unit);
}

void CutState::list_neighbours(CutUnitId unit) {
  for (const NetId net : graph_.nets[unit])
    for (const CutUnitId other : graph_.pins[net]) list(other);
}

// Units with a net that is cut, units without nets, and all of an overloaded device: nothing can be
// gained by moving others.
void CutState::list_movable() {
  clear_list();
  for (const NetId net : graph_.cost.keys())
    if (!std::has_single_bit(on_[net].touched))
      for (const CutUnitId unit : graph_.pins[net]) list(unit);
  for (const CutUnitId unit : graph_.units.keys())
    if (graph_.nets[unit].empty() || overloaded(part_[unit])) list(unit);
}

void CutState::clear_list() {
  std::fill(mark_.begin(), mark_.end(), Mark::kNone);
  listed_.clear();
}

bool CutState::improve_one(CutUnitId unit) {
  const DeviceId from = part_[unit];
  const bool anywhere = overloaded(from);  // then any move to where there is room helps
  const Gain found = find_gains(unit, gains_.data());
  const bool only_neighbours = found.elsewhere < 0 && !anywhere;
  std::optional<DeviceId> best;
  std::int64_t best_gain = 0;
  for_each_device(only_neighbours ? found.neighbours : all_but(from), [&](DeviceId to) {
    const std::int64_t gain = gains_[to.index()];
    if (best.has_value() ? gain <= best_gain : gain < 0 && !anywhere) return;
    if (!has_room(unit, to)) return;
    const bool evens = gain == 0 && load_[to].work + graph_.units[unit].work < load_[from].work;
    if (!best.has_value() && gain <= 0 && !anywhere && !evens) return;
    best = to;
    best_gain = gain;
  });
  if (best.has_value()) move(unit, *best, best_gain);
  return best.has_value();
}

void CutState::improve(Random& random, int passes) {
  list_movable();
  std::vector<CutUnitId> order;
  for (; !listed_.empty() && passes > 0; --passes) {
    order.swap(listed_);
    clear_list();
    for (std::size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[random.below(i)]);
    for (const CutUnitId unit : order)
      if (improve_one(unit)) list_neighbours(unit);
  }
}

void CutState::climb(int passes) {
  while (passes-- > 0 && climb_once()) {
  }
}

// What the listed ones gain, once the unit has moved: another sum where a net comes to a device or
// leaves it, or has one pin there before or after. Their best moves to the two devices may be others.
void CutState::tell_listed(CutUnitId unit, DeviceId to) {
  const DeviceId from = part_[unit];
  told_.clear();
  for (const NetId net : graph_.nets[unit]) {
    const std::int64_t cost = graph_.cost[net];
    const std::uint32_t left = counts(net)[from.index()] - 1, joins = counts(net)[to.index()];
    if (left > 1 && joins > 1) continue;
    for (const CutUnitId other : graph_.pins[net]) {
      if (mark_[other] != Mark::kListed) continue;
      std::int64_t* const gains = gains_of(other);
      if (left == 0) gains[from.index()] -= cost;
      if (joins == 0) gains[to.index()] += cost;
      if (left == 0 || joins == 0) told_.push_back(other);
      const std::int64_t alone = (left == 1 && part_[other] == from ? cost : 0) -
                                 (joins == 1 && part_[other] == to ? cost : 0);
      if (alone == 0) continue;
      for (std::size_t i = 0; i < caps_.size(); ++i) gains[i] += alone;
      best_move_[other].gain += alone;
    }
  }
}

// Of the listed, once a unit has moved. Where no net told them, they gain what they gained: more room
// has come to the device that it left, and less is left where it went.
void CutState::update_best_moves(DeviceId from, DeviceId to, const DeviceCap& from_before) {
  for (const CutUnitId other : listed_) {
    const std::optional<DeviceId> best = best_move_[other].to;
    if (best == to && !has_room(other, to))
      find_best_move(other);
    else if (best != from && !has_room(other, from, from_before))
      look_at(other, from);
  }
  for (const CutUnitId other : told_) {
    const std::optional<DeviceId> best = best_move_[other].to;
    if (best == from || best == to) {
      find_best_move(other);
    } else {
      look_at(other, from);
      look_at(other, to);
    }
  }
}

void CutState::find_best_move(CutUnitId unit) {
  best_move_[unit] = {};
  for_each_device(all_but(part_[unit]), [&](DeviceId to) { look_at(unit, to); });
}

void CutState::look_at(CutUnitId unit, DeviceId to) {
  BestMove& best = best_move_[unit];
  const std::int64_t gain = gains_of(unit)[to.index()];
  if (best.to.has_value() && (gain < best.gain || (gain == best.gain && to >= *best.to))) return;
  if (to != part_[unit] && has_room(unit, to)) best = {gain, to};
}

bool CutState::climb_once() {
  constexpr std::size_t kPatience = 60;  // moves without a new best
  const std::size_t devices = caps_.size();
  list_movable();
  gains_.resize(std::max(gains_.size(), graph_.units.size() * devices));
  best_move_.resize(graph_.units.size());
  const auto look_at_from = [&](std::size_t first) {
    for (std::size_t i = first; i < listed_.size(); ++i) {
      find_gains(listed_[i], gains_of(listed_[i]));
      find_best_move(listed_[i]);
    }
  };
  look_at_from(0);

  struct Step {
    CutUnitId unit;
    DeviceId from;
    std::int64_t gain;
  };
  std::vector<Step> steps;
  std::size_t kept = 0;
  std::int64_t best_cut = cut_;
  while (!listed_.empty() && steps.size() - kept <= kPatience) {
    std::optional<std::size_t> at;
    for (std::size_t i = 0; i < listed_.size(); ++i) {
      const BestMove& move = best_move_[listed_[i]];
      if (move.to.has_value() && (!at.has_value() || move.gain > best_move_[listed_[*at]].gain))
        at = i;
    }
    if (!at.has_value()) break;
    const CutUnitId unit = listed_[*at];
    const DeviceId from = part_[unit], to = *best_move_[unit].to;
    steps.push_back({unit, from, best_move_[unit].gain});
    listed_[*at] = listed_.back();
    listed_.pop_back();
    mark_[unit] = Mark::kMoved;
    tell_listed(unit, to);
    const DeviceCap from_before = load_[from];
    move(unit, to, steps.back().gain);
    update_best_moves(from, to, from_before);
    const std::size_t known = listed_.size();
    list_neighbours(unit);
    look_at_from(known);
    if (cut_ < best_cut) {
      best_cut = cut_;
      kept = steps.size();
    }
  }
  for (; steps.size() > kept; steps.pop_back())
    move(steps.back().unit, steps.back().from, -steps.back().gain);
  return kept > 0;
}

}  // namespace baechi
