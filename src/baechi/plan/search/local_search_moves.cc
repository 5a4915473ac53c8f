// SPDX-License-Identifier: Apache-2.0
// The moves that the local search tries.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "baechi/optimize/list_schedule.h"
#include "baechi/optimize/plan_order.h"
#include "baechi/plan/search/local_search.h"

namespace baechi {
namespace {

constexpr std::size_t kBetweenReorders = 256;
// Chances of moves on the critical path; another one looks at the reason why an operator waited.
constexpr double kRun = 0.1, kExchange = 0.05, kPostpone = 0.05, kBlame = 0.85;

}  // namespace

bool LocalSearch::propose() {
  changes_.clear();
  if (critical_.empty()) return false;
  const bool planned = order_ == ExecutionOrder::kPlanned;
  if (planned && step_ % kBetweenReorders == 0) return reorder();
  const Blame& blame = critical_[random_.below(critical_.size())];
  if (now_.order.has_value() && random_.chance(kRun)) return move_run(blame.op);
  if (now_.order.has_value() && random_.chance(kExchange)) return exchange_spans(blame.op);
  if (planned && random_.chance(kPostpone))
    return blame.reason == Blame::Reason::kBusyDevice && postpone(blame.cause, blame.op);
  if (random_.chance(kBlame)) return propose_for(blame);
  const UnitId unit(random_.below(units_->size()));
  // One draw per statement: compilers evaluate arguments in different orders.
  const std::size_t size = std::size_t{1} << random_.below(6);
  move_region(unit, other_device(unit), size);
  return !changes_.empty();
}

bool LocalSearch::propose_for(const Blame& blame) {
  const UnitId unit = units_->of(blame.op), cause = units_->of(blame.cause);
  const DeviceId here = now_.device[blame.op], there = now_.device[blame.cause];
  const std::size_t size = std::size_t{1} << random_.below(5);
  switch (blame.reason) {
    case Blame::Reason::kTransfer:  // bring the ends together, one way or the other
      if (random_.chance(0.5))
        move_region(unit, there, size);
      else
        move_region(cause, here, size);
      break;
    case Blame::Reason::kBusyDevice: {  // one of the two makes room, or waits
      const std::uint64_t choice = random_.below(4);
      if (choice == 0 && order_ == ExecutionOrder::kPlanned) return hoist(blame.op, blame.cause);
      const UnitId mover = choice == 1 ? unit : cause;
      move_region(mover, other_device(mover), choice == 3 ? size : 1);
      break;
    }
    case Blame::Reason::kLocalInput: {  // a faster device, or an exchange
      const DeviceId target = other_device(unit);
      move_region(unit, target, size);
      if (changes_.empty() || random_.chance(0.7)) break;
      const std::optional<UnitId> back = any_unit_on(target);
      if (back.has_value() && *back != unit && allowed(*back, here)) move(*back, here);
      break;
    }
  }
  return !changes_.empty();
}

std::optional<UnitId> LocalSearch::any_unit_on(DeviceId device) {
  if (now_.order.has_value()) {
    const std::vector<OpId>& row = (*now_.order)[device];
    if (row.empty()) return std::nullopt;
    return units_->of(row[random_.below(row.size())]);
  }
  constexpr int kDraws = 8;
  for (int i = 0; i < kDraws; ++i) {
    const UnitId unit(random_.below(units_->size()));
    if (now_.device[(*units_)[unit].ops.front()] == device) return unit;
  }
  return std::nullopt;
}

bool LocalSearch::allowed(UnitId unit, DeviceId device) const {
  const std::span<const DeviceId> devices = (*units_)[unit].devices;
  return std::find(devices.begin(), devices.end(), device) != devices.end();
}

DeviceId LocalSearch::other_device(UnitId unit) {
  const std::span<const DeviceId> devices = (*units_)[unit].devices;
  const DeviceId here = now_.device[(*units_)[unit].ops.front()];
  if (devices.size() < 2) return here;
  const DeviceId other = devices[random_.below(devices.size() - 1)];
  return other == here ? devices.back() : other;
}

// Moves the unit, and with it neighbours on its device: the ones that exchange the most bytes with
// what moves already.
void LocalSearch::move_region(UnitId seed, DeviceId device, std::size_t size) {
  const OpGraph& graph = costs_->graph();
  const DeviceId home = now_.device[(*units_)[seed].ops.front()];
  if (home == device || !allowed(seed, device)) return;
  UnitId last = seed;
  move(seed, device);
  for (std::size_t moved = 1; moved < size; ++moved) {
    std::optional<std::pair<Bytes, OpId>> heaviest;
    const auto consider = [&](OpId neighbour, const Edge& edge) {
      if (now_.device[neighbour] != home || !edge.tensor.has_value()) return;
      const std::pair candidate(graph.size(*edge.tensor), neighbour);
      if ((!heaviest.has_value() || candidate > *heaviest) &&
          allowed(units_->of(neighbour), device))
        heaviest = candidate;
    };
    constexpr std::size_t kLooked = 16;  // operators of a large unit, edges of a wide operator
    const auto ops = (*units_)[last].ops;
    for (const OpId op : ops.first(std::min(kLooked, ops.size()))) {
      const auto out = graph.out_edges(op), in = graph.in_edges(op);
      for (const Edge& edge : out.first(std::min(kLooked, out.size()))) consider(edge.to, edge);
      for (const Edge& edge : in.first(std::min(kLooked, in.size()))) consider(edge.from, edge);
    }
    if (!heaviest.has_value()) return;
    last = units_->of(heaviest->second);
    move(last, device);
  }
}

// Does the move again on the images of what moved that are where it was: on all, those before or
// those behind, in every period or in every other one.
void LocalSearch::repeat_move() {
  const std::vector<Change> moved = changes_;
  const std::uint64_t where = random_.below(3);
  const std::int64_t stride = random_.chance(0.25) ? 2 : 1;
  for (const Change& change : moved) {
    const DeviceId target = now_.device[change.op];
    if (target == change.device) continue;
    const std::int64_t first = where == 1 ? 0 : -images_->before(change.op) / stride * stride;
    const std::int64_t last = where == 2 ? 0 : images_->behind(change.op);
    for (std::int64_t shift = first; shift <= last; shift += stride) {
      const std::optional<OpId> image = images_->image(change.op, shift);
      if (!image.has_value() || now_.device[*image] != change.device) continue;
      if (const UnitId unit = units_->of(*image); allowed(unit, target)) move(unit, target);
    }
  }
}

// What just moved does not fit: something else on a device that is too full goes elsewhere, most
// often to where the first came from.
bool LocalSearch::make_room() {
  if (changes_.empty() || !all_keep_ranks()) return false;
  const std::optional<UnitId> unit = any_unit_on(overfull_);
  if (!unit.has_value()) return false;
  const DeviceId left = changes_.front().device;
  DeviceId target = left;
  if (left == overfull_ || random_.chance(0.5)) target = other_device(*unit);
  if (target == overfull_ || !allowed(*unit, target)) return false;
  move(*unit, target);
  return true;
}

// Some operators that follow each other on the device of `op`, it among them, go to another one.
bool LocalSearch::move_run(OpId op) {
  const std::size_t length = std::size_t{1} << random_.below(7);
  const DeviceId here = now_.device[op], there = other_device(units_->of(op));
  if (here == there) return false;
  const std::vector<OpId>& row = (*now_.order)[here];
  const auto at = static_cast<std::size_t>(std::lower_bound(row.begin(), row.end(), op, by_rank()) -
                                           row.begin());
  const std::size_t first = at - std::min<std::size_t>(at, random_.below(length));
  std::vector<Trip> trips;
  for (std::size_t i = first; i < std::min(first + length, row.size()); ++i)
    trips.push_back({units_->of(row[i]), there});
  move_all(trips);
  return !changes_.empty();
}

// From `op` on, two devices do what the other one did, for a while.
bool LocalSearch::exchange_spans(OpId op) {
  const std::size_t length = std::size_t{1} << random_.below(10);
  const DeviceId here = now_.device[op], there = other_device(units_->of(op));
  if (here == there) return false;
  const std::vector<OpId>&row = (*now_.order)[here], &other = (*now_.order)[there];
  const auto first = std::lower_bound(row.begin(), row.end(), op, by_rank());
  const auto last =
      first + std::min<std::ptrdiff_t>(row.end() - first, static_cast<std::ptrdiff_t>(length));
  const auto other_first = std::lower_bound(other.begin(), other.end(), op, by_rank());
  const auto other_last = last == row.end()
                              ? other.end()
                              : std::lower_bound(other_first, other.end(), *last, by_rank());
  std::vector<Trip> trips;
  for (const OpId mover : std::span(first, last)) trips.push_back({units_->of(mover), there});
  for (const OpId mover : std::span(other_first, other_last))
    trips.push_back({units_->of(mover), here});
  move_all(trips);
  return !changes_.empty();
}

// Puts `op` before `before` in its device's order, if no dependency forbids it.
bool LocalSearch::hoist(OpId op, OpId before) {
  const std::vector<OpId>& row = (*now_.order)[now_.device[op]];
  const auto target = std::lower_bound(row.begin(), row.end(), before, by_rank());
  Rank low = target == row.begin() ? 0 : rank_[*(target - 1)];
  for (const Edge& edge : costs_->graph().in_edges(op)) low = std::max(low, rank_[edge.from]);
  const Rank high = rank_[before];
  if (high - low < 2 || rank_[op] <= high) return false;
  changes_.push_back({op, now_.device[op], rank_[op]});
  set_rank(op, low + (high - low) / 2);
  return true;
}

// Puts `op` behind `behind`, likewise.
bool LocalSearch::postpone(OpId op, OpId behind) {
  const std::vector<OpId>& row = (*now_.order)[now_.device[op]];
  const auto next = std::upper_bound(row.begin(), row.end(), behind, by_rank());
  const Rank low = rank_[behind];
  Rank high = next == row.end() ? low + kRankGap : rank_[*next];
  for (const Edge& edge : costs_->graph().out_edges(op)) high = std::min(high, rank_[edge.to]);
  if (high - low < 2 || rank_[op] >= low) return false;
  changes_.push_back({op, now_.device[op], rank_[op]});
  set_rank(op, low + (high - low) / 2);
  return true;
}

// Every device anew by list scheduling.
bool LocalSearch::reorder() {
  const OpGraph& graph = costs_->graph();
  const std::vector<OpId> sequence =
      plan_order(graph, *list_schedule(*costs_, now_.device).placed.order);
  for (const OpId op : graph.ops()) changes_.push_back({op, now_.device[op], rank_[op]});
  number_ranks(sequence);
  return true;
}

}  // namespace baechi
