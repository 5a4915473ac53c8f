// SPDX-License-Identifier: Apache-2.0
#include "baechi/place/list_order.h"

#include <algorithm>
#include <functional>
#include <optional>
#include <queue>
#include <tuple>
#include <utility>
#include <vector>

namespace baechi {
namespace {

// The queues of docs/semantics.md, served in the order in which transfers are announced here.
class Queues {
 public:
  explicit Queues(const CostModel& costs)
      : costs_(costs),
        out_(costs.cluster().num_devices()),
        in_(costs.cluster().num_devices()),
        channels_(costs.cluster().num_channels()) {}

  Time send(TensorId tensor, DeviceId from, DeviceId to, Time request) {
    const Cluster& cluster = costs_.cluster();
    const Link& link = cluster.link(from, to);
    const Time duration = costs_.transfer_time(tensor, from, to);
    if (cluster.communication() == CommunicationMode::kParallel) return request + duration;
    // In sequential mode a device has one queue: out_ stands for it.
    const bool duplex = cluster.communication() == CommunicationMode::kDuplex;
    Time& sender = out_[from];
    Time& receiver = duplex ? in_[to] : out_[to];
    Time start = std::max({request, sender, receiver});
    for (const ChannelId channel : link.channels) start = std::max(start, channels_[channel]);
    const Time end = start + duration;
    sender = receiver = end;
    for (const ChannelId channel : link.channels) channels_[channel] = end;
    return end;
  }

 private:
  const CostModel& costs_;
  IdVector<DeviceId, Time> out_, in_;
  IdVector<ChannelId, Time> channels_;
};

class ListScheduler {
 public:
  ListScheduler(const CostModel& costs, const Placement& placement)
      : costs_(costs),
        graph_(costs.graph()),
        placement_(placement),
        queues_(costs),
        ahead_(longest_path_ahead(costs, placement)),
        parents_left_(graph_.num_ops()),
        ready_(graph_.num_ops()),
        workers_(costs.cluster().num_devices()),
        arrival_(costs.cluster().num_devices()) {}

  DeviceOrder run() {
    DeviceOrder order(workers_.size());
    for (const OpId op : graph_.ops()) {
      parents_left_[op] = static_cast<std::uint32_t>(graph_.in_edges(op).size());
      if (parents_left_[op] == 0) workers_[placement_[op]].future.emplace(Time(0), op);
    }
    while (const std::optional<DeviceId> device = next_device()) {
      Worker& worker = workers_[*device];
      const Time start = worker.next_start();
      worker.collect(start, ahead_);
      const OpId op = worker.available.top().second;
      worker.available.pop();
      order[*device].push_back(op);
      worker.free = start + *costs_.compute_time(op, *device);
      finish(op, *device, worker.free);
    }
    return order;
  }

 private:
  struct Worker {
    Time free;
    // By ready time, earliest first; and what is ready, longest path first (ties: smallest id).
    std::priority_queue<std::pair<Time, OpId>, std::vector<std::pair<Time, OpId>>, std::greater<>>
        future;
    std::priority_queue<std::pair<std::int64_t, OpId>, std::vector<std::pair<std::int64_t, OpId>>,
                        std::greater<>>
        available;

    bool idle() const { return future.empty() && available.empty(); }
    Time next_start() const {
      return available.empty() ? std::max(free, future.top().first) : free;
    }
    void collect(Time now, const IdVector<OpId, Time>& ahead) {
      for (; !future.empty() && future.top().first <= now; future.pop())
        available.emplace(-ahead[future.top().second].count(), future.top().second);
    }
  };

  std::optional<DeviceId> next_device() const {
    std::optional<std::pair<Time, DeviceId>> first;
    for (const DeviceId device : workers_.keys()) {
      if (workers_[device].idle()) continue;
      const std::pair candidate(workers_[device].next_start(), device);
      if (!first.has_value() || candidate < *first) first = candidate;
    }
    if (!first.has_value()) return std::nullopt;
    return first->second;
  }

  void finish(OpId op, DeviceId device, Time end) {
    for (const TensorId tensor : graph_.outputs(op)) {
      reached_.clear();
      for (const Edge& edge : graph_.consumers(tensor)) {
        const DeviceId to = placement_[edge.to];
        if (to == device) {
          arrive(edge.to, end);
          continue;
        }
        if (std::find(reached_.begin(), reached_.end(), to) == reached_.end()) {
          reached_.push_back(to);
          arrival_[to] = queues_.send(tensor, device, to, end);
        }
        arrive(edge.to, arrival_[to]);
      }
    }
    for (const Edge& edge : graph_.out_edges(op))
      if (!edge.tensor.has_value()) arrive(edge.to, end);
  }

  void arrive(OpId op, Time at) {
    ready_[op] = std::max(ready_[op], at);
    if (--parents_left_[op] == 0) workers_[placement_[op]].future.emplace(ready_[op], op);
  }

  const CostModel& costs_;
  const OpGraph& graph_;
  const Placement& placement_;
  Queues queues_;
  IdVector<OpId, Time> ahead_;
  IdVector<OpId, std::uint32_t> parents_left_;
  IdVector<OpId, Time> ready_;
  IdVector<DeviceId, Worker> workers_;
  IdVector<DeviceId, Time> arrival_;  // of the tensor at hand, at the devices reached
  std::vector<DeviceId> reached_;
};

}  // namespace

IdVector<OpId, Time> longest_path_ahead(const CostModel& costs, const Placement& placement) {
  const OpGraph& graph = costs.graph();
  IdVector<OpId, Time> ahead(graph.num_ops());
  const auto order = graph.topological_order();
  for (auto op = order.rbegin(); op != order.rend(); ++op) {
    Time longest;
    for (const Edge& edge : graph.out_edges(*op)) {
      Time path = ahead[edge.to];
      if (edge.tensor.has_value() && placement[*op] != placement[edge.to])
        path += costs.transfer_time(*edge.tensor, placement[*op], placement[edge.to]);
      longest = std::max(longest, path);
    }
    ahead[*op] = longest + *costs.compute_time(*op, placement[*op]);
  }
  return ahead;
}

DeviceOrder list_order(const CostModel& costs, const Placement& placement) {
  return ListScheduler(costs, placement).run();
}

}  // namespace baechi
