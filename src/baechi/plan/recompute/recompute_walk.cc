// SPDX-License-Identifier: Apache-2.0
#include "baechi/plan/recompute/recompute_walk.h"

#include <algorithm>
#include <cstddef>
#include <span>
#include <utility>

#include "baechi/base/random.h"
#include "baechi/plan/fit/memory_needs.h"

namespace baechi {
namespace {

class SecondRunsWalk {
 public:
  SecondRunsWalk(const CostModel& costs, const SecondRuns& runs, SecondRunsState state,
                 const RecomputeWalkOptions& options)
      : costs_(costs),
        units_(costs),
        options_(options),
        random_(options.seed),
        state_(std::move(state)) {
    for (const OpId op : costs.graph().ops())
      if (runs.may(op)) may_.push_back(op);
    for (const DeviceId device : costs.cluster().devices())
      capacity_ += static_cast<double>(costs.cluster()[device].capacity.count());
  }

  std::optional<RecomputePlan> run() {
    if (may_.empty()) return std::nullopt;
    double now = cost(options_.tried(state_));
    std::vector<double> history(kHistory, now);
    for (std::size_t step = 0; options_.goes_on(); ++step) {
      SecondRunsState before = state_;
      if (!propose()) continue;
      const double then = cost(options_.tried(state_));
      double& memory = history[step % kHistory];
      if (then <= now || then <= memory)
        now = then;
      else
        state_ = std::move(before);
      memory = now;
    }
    return std::move(best_);
  }

 private:
  static constexpr std::size_t kHistory = 40;  // a step may be as bad as one some steps ago

  // Keeps the best that fits.
  double cost(RecomputePlan plan) {
    constexpr double kOfMissing = 4;  // a step that is so much longer for what devices hold more
    const auto time = static_cast<double>(plan.makespan.count());
    const double missing = static_cast<double>(plan.over.count()) / capacity_;
    if (plan.fits() && (!best_.has_value() || plan.makespan < best_->makespan))
      best_ = std::move(plan);
    return time * (1 + kOfMissing * missing);
  }

  // One change or two.
  bool propose() {
    bool changed = change();
    if (random_.chance(0.4)) changed = change() || changed;
    return changed;
  }

  bool change() {
    switch (random_.below(4)) {
      case 0:
        return choose();
      case 1:
        return lead();
      case 2:
        return shift();
      default:
        return move();
    }
  }

  // An operator, or some that follow each other in the file, run again or no longer.
  bool choose() {
    constexpr std::uint64_t kMost = 4;
    const std::size_t from = random_.below(may_.size());
    const std::size_t count = random_.chance(0.7) ? 1 : 1 + random_.below(kMost);
    const bool again = !state_.chosen[may_[from]];
    for (std::size_t i = from; i < std::min(from + count, may_.size()); ++i)
      state_.chosen[may_[i]] = again;
    return true;
  }

  bool lead() {
    constexpr std::uint64_t kMost = 9;
    const OpId op = may_[random_.below(may_.size())];
    if (!state_.chosen[op]) return false;
    return std::exchange(state_.leads[op], static_cast<std::uint32_t>(random_.below(kMost))) !=
           state_.leads[op];
  }

  // To another place in the sequence, between what it needs and what needs it.
  bool shift() {
    const OpGraph& graph = costs_.graph();
    std::vector<OpId>& sequence = state_.start.sequence;
    IdVector<OpId, std::size_t> position(graph.num_ops());
    for (std::size_t i = 0; i < sequence.size(); ++i) position[sequence[i]] = i;
    const OpId op = sequence[random_.below(sequence.size())];
    std::size_t first = 0, last = sequence.size() - 1;
    for (const Edge& edge : graph.in_edges(op)) first = std::max(first, position[edge.from] + 1);
    for (const Edge& edge : graph.out_edges(op)) last = std::min(last, position[edge.to] - 1);
    const std::size_t from = position[op], to = first + random_.below(last - first + 1);
    const auto at = [&](std::size_t i) {
      return sequence.begin() + static_cast<std::ptrdiff_t>(i);
    };
    if (from < to) std::rotate(at(from), at(from + 1), at(to + 1));
    if (to < from) std::rotate(at(to), at(from), at(from + 1));
    return from != to;
  }

  // An operator, or some that follow each other, to another device.
  bool move() {
    const std::vector<OpId>& sequence = state_.start.sequence;
    const std::size_t from = random_.below(sequence.size());
    const std::size_t count =
        random_.chance(0.4) ? 1 : 1 + random_.below(std::max<std::size_t>(sequence.size() / 2, 1));
    const DeviceId there(random_.below(costs_.cluster().num_devices()));
    bool moved = false;
    for (std::size_t i = from; i < std::min(from + count, sequence.size()); ++i) {
      const Unit& unit = units_[units_.of(sequence[i])];
      if (std::ranges::find(unit.devices, there) == unit.devices.end()) continue;
      for (const OpId op : unit.ops)
        moved = std::exchange(state_.start.device[op], there) != there || moved;
    }
    return moved;
  }

  const CostModel& costs_;
  const Units units_;
  const RecomputeWalkOptions& options_;
  Random random_;
  std::vector<OpId> may_;  // run again
  double capacity_ = 0;    // of all devices
  SecondRunsState state_;
  std::optional<RecomputePlan> best_;
};

}  // namespace

std::optional<RecomputePlan> walk_with_second_runs(const CostModel& costs, const SecondRuns& runs,
                                                   SecondRunsState state,
                                                   const RecomputeWalkOptions& options) {
  return SecondRunsWalk(costs, runs, std::move(state), options).run();
}

}  // namespace baechi
