// SPDX-License-Identifier: Apache-2.0
#include "baechi/optimize/list_schedule.h"

#include <algorithm>
#include <compare>
#include <cstdint>
#include <functional>
#include <optional>
#include <queue>
#include <span>
#include <utility>
#include <vector>

#include "baechi/base/assert.h"

namespace baechi {
namespace {

struct Ready {  // the largest priority comes first
  Time priority;
  std::uint32_t rank;
  friend bool operator<(const Ready& a, const Ready& b) {
    return a.priority != b.priority ? a.priority < b.priority : a.rank > b.rank;
  }
};

struct Event {  // an operator has finished, or a copy of a tensor has arrived
  Time at;
  bool arrival;
  std::uint32_t id;
  DeviceId device;
  friend auto operator<=>(const Event&, const Event&) = default;
};

class Scheduler {
 public:
  Scheduler(const CostModel& costs, const Placement& placement,
            const IdVector<OpId, Time>& priority)
      : costs_(costs),
        graph_(costs.graph()),
        cluster_(costs.cluster()),
        placement_(placement),
        priority_(priority),
        rank_(graph_.num_ops()),
        waits_for_(graph_.num_ops()),
        ready_(cluster_.num_devices()),
        busy_(cluster_.num_devices(), 0),
        sending_(cluster_.num_devices()),
        receiving_(cluster_.num_devices()),
        channel_(cluster_.num_channels()),
        destined_(cluster_.num_devices(), 0),
        order_(cluster_.num_devices()) {
    std::uint32_t next = 0;
    for (const OpId op : graph_.topological_order()) rank_[op] = next++;
  }

  ListSchedule run() && {
    for (const OpId op : graph_.ops()) {
      waits_for_[op] = static_cast<std::uint32_t>(graph_.in_edges(op).size());
      if (waits_for_[op] == 0) make_ready(op);
    }
    Time now;
    start_free_devices(now);
    while (!events_.empty()) {
      now = events_.top().at;
      while (!events_.empty() && events_.top().at == now) {
        const Event event = events_.top();
        events_.pop();
        if (event.arrival)
          arrive(TensorId(event.id), event.device);
        else
          finish(OpId(event.id), event.device, now);
      }
      start_free_devices(now);
    }
    return {{placement_, std::move(order_)}, now};
  }

 private:
  void make_ready(OpId op) { ready_[placement_[op]].push({priority_[op], rank_[op]}); }
  void input_there(OpId op) {
    if (--waits_for_[op] == 0) make_ready(op);
  }

  void start_free_devices(Time now) {
    for (const DeviceId device : cluster_.devices()) {
      if (busy_[device] != 0 || ready_[device].empty()) continue;
      const OpId op = graph_.topological_order()[ready_[device].top().rank];
      ready_[device].pop();
      busy_[device] = 1;
      order_[device].push_back(op);
      const std::optional<Time> time = costs_.compute_time(op, device);
      BAECHI_ASSERT(time.has_value(), "operators are placed where they can run");
      events_.push({now + *time, false, op.value(), device});
    }
  }

  void finish(OpId op, DeviceId device, Time now) {
    busy_[device] = 0;
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
        events_.push({send(tensor, device, to, now), true, tensor.value(), to});
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
    const Link& link = cluster_.link(from, to);
    const Time duration = link.transfer_time(graph_.size(tensor));
    const CommunicationMode mode = cluster_.communication();
    if (mode == CommunicationMode::kParallel) return now + duration;
    // One queue per device in sequential mode, one per direction in duplex mode.
    IdVector<DeviceId, Time>& in = mode == CommunicationMode::kDuplex ? receiving_ : sending_;
    Time start = std::max({now, sending_[from], in[to]});
    for (const ChannelId channel : link.channels) start = std::max(start, channel_[channel]);
    const Time end = start + duration;
    sending_[from] = in[to] = end;
    for (const ChannelId channel : link.channels) channel_[channel] = end;
    return end;
  }

  const CostModel& costs_;
  const OpGraph& graph_;
  const Cluster& cluster_;
  const Placement& placement_;
  const IdVector<OpId, Time>& priority_;
  IdVector<OpId, std::uint32_t> rank_, waits_for_;
  IdVector<DeviceId, std::priority_queue<Ready>> ready_;
  IdVector<DeviceId, char> busy_;
  IdVector<DeviceId, Time> sending_, receiving_;  // until when
  IdVector<ChannelId, Time> channel_;
  IdVector<DeviceId, char> destined_;
  std::vector<DeviceId> remote_;
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
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
