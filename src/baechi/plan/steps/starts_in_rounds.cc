// SPDX-License-Identifier: Apache-2.0
#include "baechi/plan/steps/starts_in_rounds.h"

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

#include "baechi/graph/unroll.h"
#include "baechi/plan/residency/residency_orders.h"
#include "baechi/plan/residency/stored_units.h"
#include "baechi/plan/steps/residing_starts.h"

namespace baechi {
namespace {

constexpr int kOfRound = 4;  // a stage is so many parts of a round, in a search for its length
constexpr int kMost = 16;    // rounds
constexpr int kFirstStep = 8 * kOfRound;  // halved until all were tried

class Rounds {
 public:
  explicit Rounds(const CostModel& costs)
      : costs_(costs),
        graph_(costs.graph()),
        devices_(by_time(costs, store_of(costs.cluster()))),
        once_(once_per_step(graph_)) {
    for (const OpId op : graph_.ops()) tied_ = tied_ || ties(op);
    double at_once = 0;
    for (const auto& [unused, device] : devices_) {
      double all = 0;
      for (const OpId op : graph_.ops())
        if (!once_[op]) all += time(op, device);
      at_once += 1 / std::max(all, 1.0);
    }
    one_round_ = 1 / at_once;
  }

  std::optional<SequenceOfOne> in(double rounds) const {
    IdVector<OpId, std::optional<DeviceId>> at(graph_.num_ops());
    std::size_t turn = 0;
    double in_stage = 0;
    for (const OpId op : graph_.topological_order()) {
      if (once_[op] || (tied_ && graph_[op].backward) || at[op].has_value()) continue;
      if (in_stage > 0 && in_stage + time(op, device(turn)) / 2 > one_round_ / rounds) {
        ++turn;
        in_stage = 0;
      }
      for (const OpId member : members_with(graph_, op)) {
        at[member] = device(turn);
        if (!once_[member]) in_stage += time(member, device(turn));
      }
    }
    return beside_those(costs_, std::move(at), device(0), true);
  }

 private:
  // Whether it is the first of a group of forward and backward operators.
  bool ties(OpId op) const {
    const std::vector<OpId> members = members_with(graph_, op);
    const auto is_one = [&](bool backward) {
      return [this, backward](OpId member) {
        return !once_[member] && graph_[member].backward == backward;
      };
    };
    return members.front() == op && std::ranges::any_of(members, is_one(false)) &&
           std::ranges::any_of(members, is_one(true));
  }

  DeviceId device(std::size_t turn) const { return devices_[turn % devices_.size()].second; }

  double time(OpId op, DeviceId device) const {
    return static_cast<double>(costs_.compute_time(op, device).value_or(Time(0)).count());
  }

  const CostModel& costs_;
  const OpGraph& graph_;
  const std::vector<std::pair<Time, DeviceId>> devices_;
  const IdVector<OpId, bool> once_;
  bool tied_ = false;  // backward operators to forward ones, by groups
  double one_round_ = 0;
};

}  // namespace

std::optional<SequenceOfOne> in_rounds(const CostModel& costs, std::uint32_t micro_batches,
                                       std::int64_t most) {
  const Unrolled step = unroll(costs.graph(), micro_batches);
  const CostModel whole(step.graph, costs.cluster());
  const Rounds rounds(costs);
  std::vector<SequenceOfOne> seen;
  std::optional<SequenceOfOne> best;
  Time least;
  for (int by = kFirstStep; by > 0; by /= 2)
    for (int parts = kOfRound; parts <= kMost * kOfRound; parts += by) {
      if (most <= 0) return best;
      std::optional<SequenceOfOne> one = rounds.in(static_cast<double>(parts) / kOfRound);
      if (!one.has_value() || std::ranges::find(seen, *one) != seen.end()) continue;
      most -= static_cast<std::int64_t>(step.graph.num_ops());
      const ResidencyStart start = start_in_groups({step, whole}, *one, {micro_batches, {}});
      const Time end = end_of(start);
      if (!best.has_value() || end < least) {
        best = *one;
        least = end;
      }
      seen.push_back(*std::move(one));
    }
  return best;
}

}  // namespace baechi
