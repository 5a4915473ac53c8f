// SPDX-License-Identifier: Apache-2.0
#include "baechi/plan/local_search.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <span>
#include <tuple>
#include <utility>

#include "baechi/base/assert.h"
#include "baechi/graph/topological_order.h"
#include "baechi/optimize/list_schedule.h"
#include "baechi/optimize/plan_order.h"

namespace baechi {
namespace {

constexpr std::size_t kHistory = 48;
constexpr double kRepeated = 0.2;         // of the moves, where there are images to repeat them on
constexpr std::int64_t kMove = 4;         // units of work, beside the replay
constexpr std::int64_t kWholeReplay = 4;  // units of work per operator, with memory
constexpr std::int64_t kRankGap = std::int64_t{1} << 24;

}  // namespace

LocalSearch::LocalSearch(const CostModel& costs, const Units& units, const PlacedGraph& start,
                         std::uint64_t seed, ExecutionOrder order, const Images* images)
    : costs_(&costs),
      units_(&units),
      order_(order),
      images_(images),
      simulator_(costs),
      random_(seed) {
  if (order_ != ExecutionOrder::kNone) {
    blocks_.emplace(costs);
    ceiling_.emplace(costs, blocks_->edges());
  }
  restart(start);
  best_ = now_;
  best_makespan_ = makespan_;
}

void LocalSearch::restart(const PlacedGraph& placed) {
  BAECHI_ASSERT(placed.order.has_value() == (order_ != ExecutionOrder::kNone),
                "refine starts from what is executed");
  now_.device = placed.device;
  if (order_ == ExecutionOrder::kPlanned)
    number_ranks(plan_order(costs_->graph(), *placed.order));
  else
    number_ranks(program_order(costs_->graph()));
  ++evaluations_;
  const Time start = makespan();
  BAECHI_ASSERT(fits(), "refine starts from a plan that fits");
  accept(start);
  history_.assign(kHistory, makespan_);
}

void LocalSearch::number_ranks(std::span<const OpId> sequence) {
  rank_.resize(sequence.size());
  for (std::size_t i = 0; i < sequence.size(); ++i)
    rank_[sequence[i]] = static_cast<Rank>(i + 1) * kRankGap;
  if (order_ == ExecutionOrder::kNone) return;
  now_.order = DeviceOrder(costs_->cluster().num_devices());
  for (const OpId op : sequence) (*now_.order)[now_.device[op]].push_back(op);
  blocks_->start(now_);
}

Time LocalSearch::makespan() {
  const auto num_ops = static_cast<std::int64_t>(costs_->graph().num_ops());
  if (!blocks_.has_value()) {
    work_ += num_ops * kWholeReplay / 2;
    return simulator_.makespan(now_);
  }
  const Time makespan = blocks_->makespan(*now_.order);
  work_ += static_cast<std::int64_t>(blocks_->num_blocks()) + num_ops / 8;
  return makespan;
}

// Where it was just asked for its makespan. The quick answers come first.
bool LocalSearch::fits() {
  const auto num_ops = static_cast<std::int64_t>(costs_->graph().num_ops());
  if (blocks_.has_value()) {
    if (blocks_->has_room_for_all()) return true;
    work_ += num_ops / 2;
    blocks_->tell(*now_.order, slots_);
    if (ceiling_->fits(*now_.order, slots_, blocks_->copies())) return true;
  }
  work_ += num_ops * kWholeReplay;
  const StepSummary& summary = simulator_.run(now_);
  for (const DeviceId device : summary.peaks.keys())
    if (summary.peaks[device] > costs_->cluster()[device].capacity) return false;
  return true;
}

void LocalSearch::accept(Time makespan) {
  makespan_ = makespan;
  critical_.clear();
  changes_.clear();
}

// Times first; memory, which costs as much again, only for a move that they would keep.
void LocalSearch::step() {
  if (critical_.empty()) trace_critical_path();
  ++step_;
  work_ += kMove;
  if (!propose()) {
    undo();
    return;
  }
  if (images_ != nullptr && random_.chance(kRepeated)) repeat_move();
  ++evaluations_;
  work_ += static_cast<std::int64_t>(changes_.size());
  const Time makespan = this->makespan();
  Time& memory = history_[step_ % kHistory];
  if ((makespan > makespan_ && makespan > memory) || !fits()) {
    undo();
  } else {
    accept(makespan);
    if (makespan_ < best_makespan_) {
      best_makespan_ = makespan_;
      best_ = now_;
    }
  }
  memory = makespan_;
}

bool LocalSearch::propose() {
  changes_.clear();
  if (critical_.empty()) return false;
  if (step_ % 256 == 0 && order_ == ExecutionOrder::kPlanned) return reorder();
  if (random_.chance(0.85)) return propose_for(critical_[random_.below(critical_.size())]);
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

void LocalSearch::move(UnitId unit, DeviceId device) {
  const std::span<const OpId> ops = (*units_)[unit].ops;
  const std::size_t first = changes_.size();
  for (const OpId op : ops)
    if (now_.device[op] != device) changes_.push_back({op, now_.device[op], rank_[op]});
  moving_.clear();
  for (const Change& change : std::span(changes_).subspan(first)) moving_.push_back(change.op);
  relocate([&](OpId) { return device; });
}

// Takes what is in `moving_` elsewhere: one by one, or where that are many, row by row.
template <class Target>
void LocalSearch::relocate(const Target& target) {
  constexpr std::size_t kMany = 24;
  const bool row_by_row = moving_.size() > kMany;
  const bool in_rows = now_.order.has_value();
  IdVector<DeviceId, bool> left(row_by_row ? costs_->cluster().num_devices() : 0);
  if (row_by_row) is_moving_.resize(rank_.size());
  for (const OpId op : moving_) {
    const DeviceId from = now_.device[op], to = target(op);
    if (in_rows && !row_by_row) {
      std::vector<OpId>& old_row = (*now_.order)[from];
      old_row.erase(std::lower_bound(old_row.begin(), old_row.end(), op, by_rank()));
      std::vector<OpId>& row = (*now_.order)[to];
      row.insert(std::lower_bound(row.begin(), row.end(), op, by_rank()), op);
    } else if (row_by_row) {
      left[from] = true;
      is_moving_[op] = true;
    }
    now_.device[op] = to;
    if (blocks_.has_value()) blocks_->move(op, to);
  }
  if (!in_rows || !row_by_row) return;
  std::sort(moving_.begin(), moving_.end(), by_rank());
  moving_.erase(std::unique(moving_.begin(), moving_.end()), moving_.end());
  for (const DeviceId device : now_.order->keys()) {
    std::vector<OpId>& row = (*now_.order)[device];
    if (left[device]) std::erase_if(row, [&](OpId op) { return is_moving_[op]; });
    const auto end = static_cast<std::ptrdiff_t>(row.size());
    std::ranges::copy_if(moving_, std::back_inserter(row),
                         [&](OpId op) { return now_.device[op] == device; });
    std::inplace_merge(row.begin(), row.begin() + end, row.end(), by_rank());
  }
  for (const OpId op : moving_) is_moving_[op] = false;
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

// Puts `op` before `before` in its device's order, if no dependency forbids it.
bool LocalSearch::hoist(OpId op, OpId before) {
  std::vector<OpId>& row = (*now_.order)[now_.device[op]];
  const auto target = std::lower_bound(row.begin(), row.end(), before, by_rank());
  Rank low = target == row.begin() ? 0 : rank_[*(target - 1)];
  for (const Edge& edge : costs_->graph().in_edges(op)) low = std::max(low, rank_[edge.from]);
  const Rank high = rank_[before];
  if (high - low < 2 || rank_[op] <= high) return false;
  changes_.push_back({op, now_.device[op], rank_[op]});
  row.erase(std::lower_bound(row.begin(), row.end(), op, by_rank()));
  rank_[op] = low + (high - low) / 2;
  row.insert(std::lower_bound(row.begin(), row.end(), op, by_rank()), op);
  blocks_->reorder(now_.device[op]);
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

void LocalSearch::undo() {
  const auto has_rank = [&](const Change& change) { return rank_[change.op] == change.rank; };
  if (std::ranges::all_of(changes_, has_rank)) {
    std::ranges::reverse(changes_);  // some may have moved twice
    moving_.clear();
    for (const Change& change : changes_) moving_.push_back(change.op);
    std::size_t next = 0;
    relocate([&](OpId) { return changes_[next++].device; });
  } else if (changes_.size() == 1) {
    unhoist(changes_.front());
  } else {
    for (const Change& change : changes_) rank_[change.op] = change.rank;
    std::vector<OpId> sequence(costs_->graph().topological_order().begin(),
                               costs_->graph().topological_order().end());
    std::sort(sequence.begin(), sequence.end(), by_rank());
    for (std::vector<OpId>& row : *now_.order) row.clear();
    for (const OpId op : sequence) (*now_.order)[now_.device[op]].push_back(op);
    for (const DeviceId device : now_.order->keys()) blocks_->reorder(device);
  }
  changes_.clear();
}

void LocalSearch::unhoist(const Change& change) {
  std::vector<OpId>& row = (*now_.order)[change.device];
  row.erase(std::lower_bound(row.begin(), row.end(), change.op, by_rank()));
  rank_[change.op] = change.rank;
  row.insert(std::lower_bound(row.begin(), row.end(), change.op, by_rank()), change.op);
  blocks_->reorder(change.device);
}

// Who ran there before it.
IdVector<OpId, std::optional<OpId>> LocalSearch::previous_on_device() const {
  const OpGraph& graph = costs_->graph();
  IdVector<OpId, std::optional<OpId>> previous(graph.num_ops());
  const auto link = [&](const DeviceOrder& rows) {
    for (const std::vector<OpId>& row : rows)
      for (std::size_t i = 1; i < row.size(); ++i) previous[row[i]] = row[i - 1];
  };
  if (now_.order.has_value()) {
    link(*now_.order);
    return previous;
  }
  DeviceOrder rows(costs_->cluster().num_devices());
  for (const OpId op : graph.ops()) rows[slots_[op].device].push_back(op);
  for (std::vector<OpId>& row : rows)
    std::sort(row.begin(), row.end(), [&](OpId a, OpId b) {
      const OpSlot &x = slots_[a], &y = slots_[b];
      return std::tie(x.start, x.end, rank_[a]) < std::tie(y.start, y.end, rank_[b]);
    });
  link(rows);
  return previous;
}

void LocalSearch::trace_critical_path() {
  if (blocks_.has_value())
    blocks_->tell(*now_.order, slots_);
  else
    slots_ = simulator_.slots();
  critical_ = blame_critical_path(*costs_, slots_, previous_on_device());
}

}  // namespace baechi
