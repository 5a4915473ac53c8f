// SPDX-License-Identifier: Apache-2.0
#include "baechi/plan/fit/fit_walk.h"

#include <algorithm>
#include <array>
#include <span>
#include <utility>
#include <vector>

#include "baechi/base/id.h"
#include "baechi/base/random.h"
#include "baechi/graph/topological_order.h"
#include "baechi/plan/fit/fit_search.h"
#include "baechi/simulate/simulator.h"

namespace baechi {
namespace {

class Walk {
 public:
  Walk(const CostModel& costs, const Units& units, const FitWalkOptions& options)
      : costs_(costs),
        units_(units),
        options_(options),
        simulator_(costs),
        random_(options.seed),
        position_(costs.graph().num_ops()),
        cost_(replay_cost(costs.graph())) {}

  FitWalked run() {
    const std::size_t num_ops = costs_.graph().num_ops();
    const std::size_t patience = 300 + 30 * num_ops;
    while (work_ + cost_ <= options_.simulated_ops) {
      start_anew();
      Bytes now = missing();
      std::array<Bytes, kHistory> history;
      history.fill(now);
      for (std::size_t step = 0; step < patience && now > Bytes(0); ++step) {
        if (work_ + cost_ > options_.simulated_ops) break;
        if (!propose()) {
          ++work_;  // little, but where hardly anything can move it is all that is done
          continue;
        }
        const Bytes then = missing();
        Bytes& memory = history[step % kHistory];
        if (then <= now || then <= memory)
          now = then;
        else
          undo();
        memory = now;
      }
      if (now == Bytes(0)) return {std::move(placed_), work_};
    }
    return {std::nullopt, work_};
  }

 private:
  static constexpr std::size_t kHistory = 12;  // a step may be as bad as one some steps ago

  // Every unit on one of a few devices, where most is left of two; operators in random order.
  void start_anew() {
    throw_if_cancelled(options_.cancel);
    const Cluster& cluster = costs_.cluster();
    IdVector<DeviceId, Bytes> left;
    for (const DeviceId device : cluster.devices()) {
      const bool used = random_.chance(0.8);
      left.push_back(used ? cluster[device].capacity : Bytes(0));
    }
    placed_.device.assign(costs_.graph().num_ops(), DeviceId(0));
    for (const UnitId unit : units_.keys()) {
      const std::span<const DeviceId> devices = units_[unit].devices;
      DeviceId device = devices[random_.below(devices.size())];
      const DeviceId other = devices[random_.below(devices.size())];
      if (left[other] > left[device]) device = other;
      left[device] -= units_[unit].permanent;
      for (const OpId op : units_[unit].ops) placed_.device[op] = device;
    }
    if (options_.order == ExecutionOrder::kPlanned) return draw_sequence();
    sequence_ = program_order(costs_.graph());
  }

  // Now the operator that became free last, now any that is free.
  void draw_sequence() {
    const OpGraph& graph = costs_.graph();
    sequence_.clear();
    IdVector<OpId, std::uint32_t> parents_left(graph.num_ops());
    std::vector<OpId> free;
    for (const OpId op : graph.ops()) {
      parents_left[op] = static_cast<std::uint32_t>(graph.in_edges(op).size());
      if (parents_left[op] == 0) free.push_back(op);
    }
    while (!free.empty()) {
      if (random_.chance(0.5)) std::swap(free[random_.below(free.size())], free.back());
      const OpId op = free.back();
      free.pop_back();
      position_[op] = sequence_.size();
      sequence_.push_back(op);
      for (const Edge& edge : graph.out_edges(op))
        if (--parents_left[edge.to] == 0) free.push_back(edge.to);
    }
  }

  // What the devices lack, all together.
  Bytes missing() {
    work_ += cost_;
    rows_.assign(costs_.cluster().num_devices(), {});
    for (const OpId op : sequence_) rows_[placed_.device[op]].push_back(op);
    if (options_.order != ExecutionOrder::kNone) placed_.order = rows_;
    const StepSummary& step = simulator_.run(placed_);
    Bytes missing;
    over_.clear();
    for (const DeviceId device : step.peaks.keys()) {
      const Bytes capacity = costs_.cluster()[device].capacity;
      if (step.peaks[device] <= capacity) continue;
      missing += step.peaks[device] - capacity;
      over_.push_back(device);
    }
    return missing;
  }

  bool propose() {
    moved_.clear();
    shifted_.reset();
    const OpId op = draw_operator();
    const std::uint64_t kind = random_.below(8);
    const bool may_shift = options_.order == ExecutionOrder::kPlanned;
    if (kind < 4 && may_shift) return shift(op);
    const UnitId unit = units_.of(op);
    const std::span<const DeviceId> devices = units_[unit].devices;
    const DeviceId here = placed_.device[op], there = devices[random_.below(devices.size())];
    if (here == there) return may_shift && shift(op);
    move(unit, there);
    if (kind == 7) {  // and one of those there comes here
      const UnitId back(random_.below(units_.size()));
      const auto& allowed = units_[back].devices;
      if (back != unit && placed_.device[units_[back].ops.front()] == there &&
          std::find(allowed.begin(), allowed.end(), here) != allowed.end())
        move(back, here);
    }
    return true;
  }

  // Mostly one of a device that lacks memory.
  OpId draw_operator() {
    const OpId any(random_.below(sequence_.size()));
    if (over_.empty() || random_.chance(0.3)) return any;
    const std::vector<OpId>& row = rows_[over_[random_.below(over_.size())]];
    return row.empty() ? any : row[random_.below(row.size())];
  }

  // To another place in the sequence, between what it needs and what needs it.
  bool shift(OpId op) {
    const OpGraph& graph = costs_.graph();
    std::size_t first = 0, last = sequence_.size() - 1;
    for (const Edge& edge : graph.in_edges(op)) first = std::max(first, position_[edge.from] + 1);
    for (const Edge& edge : graph.out_edges(op)) last = std::min(last, position_[edge.to] - 1);
    const std::size_t from = position_[op], to = first + random_.below(last - first + 1);
    if (from == to) return false;
    shifted_ = {from, to};
    rotate(from, to);
    return true;
  }

  void rotate(std::size_t from, std::size_t to) {
    const auto at = [&](std::size_t i) {
      return sequence_.begin() + static_cast<std::ptrdiff_t>(i);
    };
    if (from < to)
      std::rotate(at(from), at(from + 1), at(to + 1));
    else
      std::rotate(at(to), at(from), at(from + 1));
    for (std::size_t i = std::min(from, to); i <= std::max(from, to); ++i)
      position_[sequence_[i]] = i;
  }

  void move(UnitId unit, DeviceId device) {
    moved_.emplace_back(unit, placed_.device[units_[unit].ops.front()]);
    for (const OpId op : units_[unit].ops) placed_.device[op] = device;
  }

  void undo() {
    if (shifted_.has_value()) rotate(shifted_->second, shifted_->first);
    for (const auto& [unit, device] : moved_)
      for (const OpId op : units_[unit].ops) placed_.device[op] = device;
  }

  const CostModel& costs_;
  const Units& units_;
  const FitWalkOptions& options_;
  Simulator simulator_;
  Random random_;

  PlacedGraph placed_;
  std::vector<OpId> sequence_;  // topological; planned orders are restrictions of it
  DeviceOrder rows_;            // the restrictions
  IdVector<OpId, std::size_t> position_;
  std::vector<DeviceId> over_;  // those that lacked memory when it was looked at last
  std::vector<std::pair<UnitId, DeviceId>> moved_;  // of the last proposal, with where they were
  std::optional<std::pair<std::size_t, std::size_t>> shifted_;
  const std::int64_t cost_;  // of one replay
  std::int64_t work_ = 0;
};

}  // namespace

FitWalked walk_to_fit(const CostModel& costs, const Units& units, const FitWalkOptions& options) {
  return Walk(costs, units, options).run();
}

}  // namespace baechi
