// SPDX-License-Identifier: Apache-2.0
#include "baechi/plan/search/local_search.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <optional>
#include <span>
#include <tuple>
#include <utility>

#include "baechi/base/assert.h"
#include "baechi/graph/topological_order.h"
#include "baechi/optimize/plan_order.h"

namespace baechi {
namespace {

constexpr double kRepeated = 0.2;         // of the moves, where there are images to repeat them on
constexpr std::int64_t kMove = 4;         // units of work, beside the replay
constexpr std::int64_t kWholeReplay = 4;  // units of work per operator, with memory
// The price of memory that lacks rises with every step with too little, and falls with the others.
constexpr double kRise = 1.02, kLeastPrice = 0.4, kHighestPrice = 4'000;

}  // namespace

LocalSearch::LocalSearch(const CostModel& costs, const Units& units, const PlacedGraph& start,
                         const LocalSearchOptions& options)
    : costs_(&costs),
      units_(&units),
      order_(options.order),
      images_(options.images),
      may_lack_(options.may_lack),
      simulator_(costs),
      random_(options.seed),
      history_(options.history) {
  // With a host time, or behind an operator that sends, a block may stand still inside. Where
  // messages take time, so do operators on another device than those beside them.
  if (order_ != ExecutionOrder::kNone && !costs.cluster().host_time().has_value() &&
      !costs.cluster().sends_block() && !costs.cluster().message_time().has_value()) {
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
  BAECHI_ASSERT(lack() == 0, "refine starts from a plan that fits");
  accept(start, 0);
  history_.assign(history_.size(), makespan_);
}

void LocalSearch::number_ranks(std::span<const OpId> sequence) {
  rank_.resize(sequence.size());
  for (std::size_t i = 0; i < sequence.size(); ++i)
    rank_[sequence[i]] = static_cast<Rank>(i + 1) * kRankGap;
  if (order_ == ExecutionOrder::kNone) return;
  now_.order = DeviceOrder(costs_->cluster().num_devices());
  if (order_ == ExecutionOrder::kProgram) now_.asking.emplace(sequence.begin(), sequence.end());
  for (const OpId op : sequence) (*now_.order)[now_.device[op]].push_back(op);
  if (blocks_.has_value()) blocks_->start(now_);
}

Time LocalSearch::makespan() {
  const auto num_ops = static_cast<std::int64_t>(costs_->graph().num_ops());
  if (!blocks_.has_value()) {
    work_ += num_ops * kWholeReplay / 2;
    return simulator_.makespan(now_);
  }
  const Time makespan = blocks_->makespan(*now_.order);
  work_ += blocks_->work() + num_ops / 8;
  return makespan;
}

Time LocalSearch::makespan(Time most) {
  if (!blocks_.has_value()) return makespan();
  Rank changed = 0;
  for (const Change& change : changes_)
    changed = std::max({changed, change.rank, rank_[change.op]});
  const Time makespan =
      blocks_->makespan(*now_.order, {.most = most, .rank = &rank_, .changed = changed});
  work_ += blocks_->work() + static_cast<std::int64_t>(costs_->graph().num_ops()) / 8;
  return makespan;
}

// Where it was just asked for its makespan. The quick answers come first.
double LocalSearch::lack() {
  const auto num_ops = static_cast<std::int64_t>(costs_->graph().num_ops());
  if (blocks_.has_value()) {
    if (blocks_->has_room_for_all()) return 0;
    work_ += num_ops / 2;
    blocks_->tell(*now_.order, slots_);
    if (ceiling_->fits(*now_.order, slots_, blocks_->copies())) return 0;
  }
  work_ += num_ops * kWholeReplay;
  const StepSummary& summary = simulator_.run(now_);
  double lack = 0;
  for (const DeviceId device : summary.peaks.keys()) {
    const Bytes peak = summary.peaks[device], capacity = costs_->cluster()[device].capacity;
    if (peak <= capacity) continue;
    overfull_ = device;
    lack += static_cast<double>((peak - capacity).count()) /
            static_cast<double>(std::max<std::int64_t>(capacity.count(), 1));
  }
  return lack;
}

void LocalSearch::accept(Time makespan, double lack) {
  makespan_ = makespan;
  lack_ = lack;
  critical_.clear();
  changes_.clear();
  if (blocks_.has_value()) blocks_->keep();
}

// Times first; memory, which costs as much again, only for a move that they would keep. A way
// between two plans that fit may lead over some that do not.
void LocalSearch::step() {
  if (critical_.empty()) trace_critical_path();
  ++step_;
  work_ += kMove;
  if (!propose()) {
    undo();
    return;
  }
  if (images_ != nullptr && random_.chance(kRepeated)) repeat_move();
  work_ += static_cast<std::int64_t>(changes_.size());
  Time& memory = history_[step_ % history_.size()];
  Time makespan;
  double lack = 0;
  const auto is_longer = [&] {
    const Time cost = this->cost(makespan, lack);
    return cost > this->cost(makespan_, lack_) && cost > memory;
  };
  const auto look = [&] {
    ++evaluations_;
    makespan = this->makespan(std::max(cost(makespan_, lack_), memory));
    lack = 0;
    if (!is_longer()) lack = this->lack();
  };
  look();
  if (lack > 0 && may_lack_ && make_room()) look();
  if (is_longer() || (lack > 0 && !may_lack_)) {
    undo();
  } else {
    accept(makespan, lack);
    if (lack_ == 0 && makespan_ < best_makespan_) {
      best_makespan_ = makespan_;
      best_ = now_;
    }
  }
  price_ = std::clamp(lack_ > 0 ? price_ * kRise : price_ / kRise, kLeastPrice, kHighestPrice);
  memory = cost(makespan_, lack_);
}

Time LocalSearch::cost(Time makespan, double lack) const {
  constexpr double kMost = 4e18;
  if (lack == 0) return makespan;
  const double cost = static_cast<double>(makespan.count()) * (1 + price_ * lack);
  return Time(static_cast<std::int64_t>(std::min(cost, kMost)));
}

bool LocalSearch::take(UnitId unit, DeviceId device, Time most) {
  if (!allowed(unit, device)) return false;
  ++evaluations_;
  work_ += kMove;
  changes_.clear();
  move(unit, device);
  const Time makespan = this->makespan(most);
  if (makespan > most || lack() > 0) {
    undo();
    return false;
  }
  accept(makespan, 0);
  return true;
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

void LocalSearch::move_all(std::vector<Trip>& trips) {
  std::ranges::stable_sort(trips, {}, &Trip::unit);
  std::vector<DeviceId> targets;
  moving_.clear();
  std::optional<UnitId> last;
  for (const auto& [unit, device] : trips) {
    if (unit == last || !allowed(unit, device)) continue;
    last = unit;
    for (const OpId op : (*units_)[unit].ops) {
      if (now_.device[op] == device) continue;
      changes_.push_back({op, now_.device[op], rank_[op]});
      moving_.push_back(op);
      targets.push_back(device);
    }
  }
  std::size_t next = 0;
  relocate([&](OpId) { return targets[next++]; });
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

bool LocalSearch::all_keep_ranks() const {
  return std::ranges::all_of(changes_,
                             [&](const Change& change) { return rank_[change.op] == change.rank; });
}

void LocalSearch::undo() {
  if (all_keep_ranks()) {
    std::ranges::reverse(changes_);  // some may have moved twice
    moving_.clear();
    for (const Change& change : changes_) moving_.push_back(change.op);
    std::size_t next = 0;
    relocate([&](OpId) { return changes_[next++].device; });
  } else if (changes_.size() == 1) {
    set_rank(changes_.front().op, changes_.front().rank);
  } else {
    for (const Change& change : changes_) rank_[change.op] = change.rank;
    std::vector<OpId> sequence(costs_->graph().topological_order().begin(),
                               costs_->graph().topological_order().end());
    std::sort(sequence.begin(), sequence.end(), by_rank());
    for (std::vector<OpId>& row : *now_.order) row.clear();
    for (const OpId op : sequence) (*now_.order)[now_.device[op]].push_back(op);
    if (blocks_.has_value())
      for (const DeviceId device : now_.order->keys()) blocks_->reorder(device);
  }
  changes_.clear();
}

// In its device's order, too.
void LocalSearch::set_rank(OpId op, Rank rank) {
  std::vector<OpId>& row = (*now_.order)[now_.device[op]];
  row.erase(std::lower_bound(row.begin(), row.end(), op, by_rank()));
  rank_[op] = rank;
  row.insert(std::lower_bound(row.begin(), row.end(), op, by_rank()), op);
  if (blocks_.has_value()) blocks_->reorder(now_.device[op]);
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
