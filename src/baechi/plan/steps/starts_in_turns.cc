// SPDX-License-Identifier: Apache-2.0
#include "baechi/plan/steps/starts_in_turns.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <tuple>
#include <utility>
#include <vector>

#include "baechi/graph/topological_order.h"
#include "baechi/graph/unroll.h"
#include "baechi/plan/residency/residency_orders.h"
#include "baechi/plan/residency/stored_units.h"
#include "baechi/plan/steps/residing_starts.h"

namespace baechi {
namespace {

constexpr std::array kStages{24, 3, 8, 48, 16, 32, 5, 12, 6, 4, 64, 20, 2, 1};

class Turns {
 public:
  Turns(const OpGraph& one, const Replicas& copies, const CostModel& costs)
      : one_(one),
        costs_(costs),
        count_(copies.count),
        devices_(by_time(costs, store_of(costs.cluster()))),
        once_(once_per_step(one)) {
    for (const OpId op : one.ops()) {
      rank_.push_back(of_replica_);
      if (!once_[op]) ++of_replica_;
    }
  }

  std::optional<SequenceOfOne> in(int number) const {
    IdVector<OpId, std::optional<std::size_t>> stage(one_.num_ops());
    const std::vector<std::vector<double>> times = cut(number, stage);
    std::vector<std::size_t> next(count_);  // stage of each replica
    std::vector<double> ready(count_), free(devices_.size());
    IdVector<OpId, std::optional<DeviceId>> at(costs_.graph().num_ops());
    IdVector<OpId, double> begin(at.size());
    for (std::size_t turns = times.size() * count_; turns > 0; --turns) {
      std::optional<std::tuple<double, std::size_t, std::uint32_t>> first;
      for (std::uint32_t r = 0; r < count_; ++r)
        if (next[r] < times.size()) {
          const std::tuple mine(ready[r], next[r], r);
          if (!first.has_value() || mine < *first) first = mine;
        }
      const std::size_t turn = std::get<1>(*first);
      const std::uint32_t r = std::get<2>(*first);
      std::size_t best = 0;
      const auto end = [&](std::size_t d) { return std::max(free[d], ready[r]) + times[turn][d]; };
      for (std::size_t d = 1; d < devices_.size(); ++d)
        if (end(d) < end(best)) best = d;
      const double start = std::max(free[best], ready[r]);
      for (const OpId op : one_.ops())
        if (stage[op] == turn) {
          at[copy(op, r)] = devices_[best].second;
          begin[copy(op, r)] = start;
        }
      free[best] = ready[r] = end(best);
      ++next[r];
    }
    std::optional<SequenceOfOne> found = beside_those(costs_, at, devices_.front().second, true);
    if (!found.has_value()) return found;
    found->sequence = order_by_key(costs_.graph(), [&](OpId op) { return begin[op]; });
    return found;
  }

 private:
  OpId copy(OpId op, std::uint32_t r) const {
    return r == 0 ? op : OpId(one_.num_ops() + (r - 1) * of_replica_ + rank_[op]);
  }
  double time(OpId op, std::size_t device) const {
    return static_cast<double>(
        costs_.compute_time(op, devices_[device].second).value_or(Time(0)).count());
  }

  // What each stage takes on each device.
  std::vector<std::vector<double>> cut(int number,
                                       IdVector<OpId, std::optional<std::size_t>>& stage) const {
    double all = 0, so_far = 0;
    for (const OpId op : one_.ops())
      if (!once_[op]) all += time(op, 0);
    std::vector<std::vector<double>> times;
    for (const OpId op : one_.topological_order()) {
      if (once_[op] || stage[op].has_value()) continue;
      const double begun = static_cast<double>(times.size()) * all / number;
      if (times.empty() || so_far >= begun) times.emplace_back(devices_.size());
      for (const OpId member : members_with(one_, op)) {
        if (once_[member]) continue;
        stage[member] = times.size() - 1;
        so_far += time(member, 0);
        for (std::size_t d = 0; d < devices_.size(); ++d) times.back()[d] += time(member, d);
      }
    }
    return times;
  }

  const OpGraph& one_;
  const CostModel& costs_;
  const std::uint32_t count_;
  const std::vector<std::pair<Time, DeviceId>> devices_;
  const IdVector<OpId, bool> once_;
  IdVector<OpId, std::size_t> rank_;  // among those that each replica has
  std::size_t of_replica_ = 0;
};

}  // namespace

std::optional<SequenceOfOne> in_turns(const OpGraph& one, const Replicas& copies,
                                      const CostModel& costs, std::int64_t most) {
  const Turns turns(one, copies, costs);
  const Unrolled step = unroll(costs.graph(), 1);
  const CostModel whole(step.graph, costs.cluster());
  std::optional<SequenceOfOne> best;
  Time least;
  for (const int number : kStages) {
    if (most <= 0) break;
    most -= static_cast<std::int64_t>(step.graph.num_ops());
    std::optional<SequenceOfOne> found = turns.in(number);
    if (!found.has_value()) continue;
    const Time end = end_of(start_in_groups({step, whole}, *found, {}));
    if (best.has_value() && end >= least) continue;
    best = std::move(found);
    least = end;
  }
  return best;
}

}  // namespace baechi
