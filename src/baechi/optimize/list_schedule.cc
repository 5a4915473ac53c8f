// SPDX-License-Identifier: Apache-2.0
#include "baechi/optimize/list_schedule.h"

#include <algorithm>
#include <array>
#include <bit>
#include <compare>
#include <cstdint>
#include <functional>
#include <numeric>
#include <optional>
#include <queue>
#include <span>
#include <utility>
#include <vector>

#include "baechi/base/assert.h"
#include "baechi/cluster/transfer_queues.h"

namespace baechi {
namespace {

// Operators by falling priority; alike ones as in the topological order. By digits of 11 bits, the
// lowest first.
std::vector<OpId> by_priority(const OpGraph& graph, const IdVector<OpId, Time>& priority) {
  constexpr unsigned kDigit = 11;
  constexpr std::uint64_t kMask = (std::uint64_t{1} << kDigit) - 1;
  using Keyed = std::pair<std::uint64_t, OpId>;
  Time least, most;
  for (const Time time : priority) {
    least = std::min(least, time);
    most = std::max(most, time);
  }
  std::vector<Keyed> from, to(graph.num_ops(), Keyed(0, OpId(0)));
  from.reserve(graph.num_ops());
  for (const OpId op : graph.topological_order())
    from.emplace_back(static_cast<std::uint64_t>((most - priority[op]).count()), op);
  const auto bits =
      static_cast<unsigned>(std::bit_width(static_cast<std::uint64_t>((most - least).count())));
  for (unsigned shift = 0; shift < bits; shift += kDigit) {
    std::array<std::uint32_t, kMask + 2> begin{};
    for (const Keyed& entry : from) ++begin[(entry.first >> shift & kMask) + 1];
    std::partial_sum(begin.begin(), begin.end(), begin.begin());
    for (const Keyed& entry : from) to[begin[entry.first >> shift & kMask]++] = entry;
    from.swap(to);
  }
  std::vector<OpId> order;
  order.reserve(from.size());
  for (const Keyed& entry : from) order.push_back(entry.second);
  return order;
}

// A set of numbers below a bound that gives its smallest away: a tree of 64-bit words, each bit of
// which says whether the word below it has any.
class SmallestFirst {
 public:
  explicit SmallestFirst(std::size_t bound) {
    do {
      bound = (bound + 63) / 64;
      levels_.emplace_back(bound, 0);
    } while (bound > 1);
  }
  bool empty() const { return levels_.back().front() == 0; }
  void insert(std::uint32_t number) {
    for (std::vector<std::uint64_t>& level : levels_) {
      const std::uint64_t before = level[number / 64];
      level[number / 64] = before | std::uint64_t{1} << number % 64;
      if (before != 0) return;
      number /= 64;
    }
  }
  // Requires a set that is not empty.
  std::uint32_t take_smallest() {
    std::uint32_t number = 0;
    for (std::size_t i = levels_.size(); i-- > 0;)
      number = number * 64 + static_cast<std::uint32_t>(std::countr_zero(levels_[i][number]));
    std::uint32_t at = number;
    for (std::vector<std::uint64_t>& level : levels_) {
      level[at / 64] &= ~(std::uint64_t{1} << at % 64);
      if (level[at / 64] != 0) break;
      at /= 64;
    }
    return number;
  }

 private:
  std::vector<std::vector<std::uint64_t>> levels_;  // the numbers themselves first
};

struct Finish {
  Time at;
  OpId op;
  DeviceId device;
  friend auto operator<=>(const Finish&, const Finish&) = default;
};

struct Arrival {  // of a copy of a tensor
  Time at;
  TensorId tensor;
  DeviceId device;
  friend auto operator<=>(const Arrival&, const Arrival&) = default;
};

template <class T>
using EarliestFirst = std::priority_queue<T, std::vector<T>, std::greater<>>;

class Scheduler {
 public:
  Scheduler(const CostModel& costs, const Placement& placement,
            const IdVector<OpId, Time>& priority)
      : costs_(costs),
        graph_(costs.graph()),
        cluster_(costs.cluster()),
        placement_(placement),
        by_priority_(by_priority(graph_, priority)),
        position_(graph_.num_ops()),
        waits_for_(graph_.num_ops()),
        ready_(cluster_.num_devices(), SmallestFirst(graph_.num_ops())),
        busy_(cluster_.num_devices(), 0),
        queues_(cluster_),
        destined_(cluster_.num_devices(), 0),
        order_(cluster_.num_devices()) {
    for (std::size_t i = 0; i < by_priority_.size(); ++i)
      position_[by_priority_[i]] = static_cast<std::uint32_t>(i);
  }

  ListSchedule run() && {
    for (const OpId op : graph_.ops()) {
      waits_for_[op] = static_cast<std::uint32_t>(graph_.in_edges(op).size());
      if (waits_for_[op] == 0) make_ready(op);
    }
    Time now;
    for (const DeviceId device : cluster_.devices()) start(device, now);
    while (!finishes_.empty() || !arrivals_.empty()) {
      now = finishes_.empty()   ? arrivals_.top().at
            : arrivals_.empty() ? finishes_.top().at
                                : std::min(finishes_.top().at, arrivals_.top().at);
      for (; !finishes_.empty() && finishes_.top().at == now; finishes_.pop())
        finish(finishes_.top().op, finishes_.top().device, now);
      for (; !arrivals_.empty() && arrivals_.top().at == now; arrivals_.pop())
        arrive(arrivals_.top().tensor, arrivals_.top().device);
      for (const DeviceId device : stirred_) start(device, now);
      stirred_.clear();
    }
    return {{placement_, std::move(order_)}, now};
  }

 private:
  void make_ready(OpId op) { ready_[placement_[op]].insert(position_[op]); }
  void input_there(OpId op) {
    if (--waits_for_[op] > 0) return;
    make_ready(op);
    if (busy_[placement_[op]] == 0) stirred_.push_back(placement_[op]);
  }

  void start(DeviceId device, Time now) {
    if (busy_[device] != 0 || ready_[device].empty()) return;
    const OpId op = by_priority_[ready_[device].take_smallest()];
    busy_[device] = 1;
    order_[device].push_back(op);
    const std::optional<Time> time = costs_.compute_time(op, device);
    BAECHI_ASSERT(time.has_value(), "operators are placed where they can run");
    finishes_.push({now + *time, op, device});
  }

  void finish(OpId op, DeviceId device, Time now) {
    busy_[device] = 0;
    stirred_.push_back(device);
    for (const TensorId tensor : graph_.outputs(op)) {
      remote_.clear();
      for (const Edge& edge : graph_.consumers(tensor)) {
        const DeviceId to = placement_[edge.to];
        if (to == device) {
          input_there(edge.to);
        } else if (destined_[to] == 0) {
          destined_[to] = 1;
          remote_.push_back(to);
        }
      }
      std::sort(remote_.begin(), remote_.end());
      for (const DeviceId to : remote_) {
        destined_[to] = 0;
        arrivals_.push({send(tensor, device, to, now), tensor, to});
      }
    }
    const std::span<const Edge> edges = graph_.out_edges(op);
    for (std::size_t i = edges.size(); i > 0 && !edges[i - 1].tensor.has_value(); --i)
      input_there(edges[i - 1].to);
  }

  void arrive(TensorId tensor, DeviceId device) {
    for (const Edge& edge : graph_.consumers(tensor))
      if (placement_[edge.to] == device) input_there(edge.to);
  }

  Time send(TensorId tensor, DeviceId from, DeviceId to, Time now) {
    const Time takes = cluster_.link(from, to).transfer_time(graph_.size(tensor));
    return queues_.serve(from, to, now, takes).end;
  }

  const CostModel& costs_;
  const OpGraph& graph_;
  const Cluster& cluster_;
  const Placement& placement_;
  std::vector<OpId> by_priority_;
  IdVector<OpId, std::uint32_t> position_;  // in by_priority_
  IdVector<OpId, std::uint32_t> waits_for_;
  IdVector<DeviceId, SmallestFirst> ready_;
  IdVector<DeviceId, char> busy_;
  TransferQueues queues_;
  IdVector<DeviceId, char> destined_;
  std::vector<DeviceId> remote_;
  EarliestFirst<Finish> finishes_;
  EarliestFirst<Arrival> arrivals_;
  std::vector<DeviceId> stirred_;  // free, and perhaps with something to do
  DeviceOrder order_;
};

}  // namespace

IdVector<OpId, Time> critical_times(const CostModel& costs, const Placement& placement) {
  const OpGraph& graph = costs.graph();
  IdVector<OpId, Time> left(graph.num_ops());
  const std::span<const OpId> order = graph.topological_order();
  for (std::size_t i = order.size(); i-- > 0;) {
    const OpId op = order[i];
    const DeviceId device = placement[op];
    Time longest;
    for (const Edge& edge : graph.out_edges(op)) {
      Time way = left[edge.to];
      if (edge.tensor.has_value() && placement[edge.to] != device)
        way += costs.transfer_time(*edge.tensor, device, placement[edge.to]);
      longest = std::max(longest, way);
    }
    left[op] = longest + costs.compute_time(op, device).value_or(Time(0));
  }
  return left;
}

ListSchedule list_schedule(const CostModel& costs, const Placement& placement,
                           const IdVector<OpId, Time>& priority) {
  return Scheduler(costs, placement, priority).run();
}

ListSchedule list_schedule(const CostModel& costs, const Placement& placement) {
  return list_schedule(costs, placement, critical_times(costs, placement));
}

}  // namespace baechi
