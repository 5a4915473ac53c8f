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

constexpr std::array kStageCounts{24, 3, 8, 48, 16, 32, 5, 12, 6, 4, 64, 20, 2, 1};

class Turns {
 public:
  Turns(const OpGraph& one, const Replicas& copies, const CostModel& costs)
      : one_(one),
        costs_(costs),
        count_(copies.count),
        devices_(by_time(costs, store_of(costs.cluster()))),
        once_(once_per_step(one)),
        copy_(one, &once_) {}

  std::optional<SequenceOfOne> in(int number) const {
    const std::vector<Stage> stages = cut(number);
    std::vector<std::size_t> next(count_);  // stage of each replica
    std::vector<double> ready(count_), free(devices_.size());
    IdVector<OpId, std::optional<DeviceId>> at(costs_.graph().num_ops());
    IdVector<OpId, double> begin(at.size());
    for (std::size_t turns = stages.size() * count_; turns > 0; --turns) {
      std::optional<std::tuple<double, std::size_t, std::uint32_t>> first;
      for (std::uint32_t r = 0; r < count_; ++r)
        if (next[r] < stages.size()) {
          const std::tuple mine(ready[r], next[r], r);
          if (!first.has_value() || mine < *first) first = mine;
        }
      const std::size_t turn = std::get<1>(*first);
      const std::uint32_t r = std::get<2>(*first);
      std::size_t best = 0;
      const auto end = [&](std::size_t d) {
        return std::max(free[d], ready[r]) + stages[turn].times[d];
      };
      for (std::size_t d = 1; d < devices_.size(); ++d)
        if (end(d) < end(best)) best = d;
      const double start = std::max(free[best], ready[r]);
      for (const OpId op : stages[turn].members) {
        at[copy_(op, r)] = devices_[best].second;
        begin[copy_(op, r)] = start;
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
  struct Stage {
    std::vector<OpId> members;
    std::vector<double> times;  // on each device
  };

  double time(OpId op, std::size_t device) const {
    return static_cast<double>(
        costs_.compute_time(op, devices_[device].second).value_or(Time(0)).count());
  }

  std::vector<Stage> cut(int number) const {
    IdVector<OpId, bool> taken(one_.num_ops());
    double all = 0, so_far = 0;
    for (const OpId op : one_.ops())
      if (!once_[op]) all += time(op, 0);
    std::vector<Stage> stages;
    for (const OpId op : one_.topological_order()) {
      if (once_[op] || taken[op]) continue;
      const double begun = static_cast<double>(stages.size()) * all / number;
      if (stages.empty() || so_far >= begun)
        stages.push_back({{}, std::vector<double>(devices_.size())});
      for (const OpId member : members_with(one_, op)) {
        if (once_[member]) continue;
        taken[member] = true;
        stages.back().members.push_back(member);
        so_far += time(member, 0);
        for (std::size_t d = 0; d < devices_.size(); ++d) stages.back().times[d] += time(member, d);
      }
    }
    return stages;
  }

  const OpGraph& one_;
  const CostModel& costs_;
  const std::uint32_t count_;
  const std::vector<std::pair<Time, DeviceId>> devices_;
  const IdVector<OpId, bool> once_;
  const CopyIds copy_;
};

}  // namespace

std::optional<SequenceOfOne> in_turns(const OpGraph& one, const Replicas& copies,
                                      const CostModel& costs, std::int64_t most) {
  const Turns turns(one, copies, costs);
  const Unrolled step = unroll(costs.graph(), 1);
  const CostModel whole(step.graph, costs.cluster());
  std::optional<SequenceOfOne> best;
  Time least;
  for (const int number : kStageCounts) {
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
