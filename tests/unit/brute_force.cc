// SPDX-License-Identifier: Apache-2.0
#include "unit/brute_force.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

namespace baechi::testing {
namespace {

using Count = std::int64_t;
using Index = std::size_t;

// The instance as plain tables: rows by operator, tensor or device number.
struct Instance {
  struct Tensor {
    Index producer = 0;
    Count bytes = 0;
    bool kept = false;  // until the step ends: memory mode retain, a forward operator's
    std::vector<Index> readers;
  };
  std::vector<bool> variable;  // [op]: there when the step starts, and all the time
  Index num_ops = 0, num_devices = 0, num_channels = 0;
  CommunicationMode mode = CommunicationMode::kParallel;
  std::vector<std::vector<std::optional<Count>>> time;  // [op][device]; absent: forbidden
  std::vector<std::vector<Index>> before;               // [op]: all it waits for, data or control
  std::vector<std::vector<Index>> reads;                // [op]: tensors
  std::vector<std::pair<Index, Index>> outputs;         // [op]: its tensors, begin and end
  std::vector<Count> permanent, temporary;
  std::vector<std::optional<Index>> group;
  std::vector<Tensor> tensors;
  std::vector<Count> capacity;
  std::vector<std::vector<std::vector<Count>>> transfer;  // [tensor][from][to]
  std::vector<std::vector<std::vector<Index>>> channels;  // [from][to]
  std::vector<Index> order;                               // topological
  std::vector<std::vector<bool>> ancestor;                // [a][b]: a precedes b
  std::vector<std::vector<bool>> twins;                   // interchangeable devices
};

bool twins(const OpGraph& graph, const Cluster& cluster, DeviceId a, DeviceId b) {
  const Device &x = cluster[a], &y = cluster[b];
  if (x.kind != y.kind || x.speed != y.speed || x.capacity != y.capacity) return false;
  for (const OpId op : graph.ops())
    if (graph[op].pin == x.name || graph[op].pin == y.name) return false;
  if (cluster.link(a, b) != cluster.link(b, a)) return false;
  return std::ranges::all_of(cluster.devices(), [&](DeviceId other) {
    return other == a || other == b ||
           (cluster.link(a, other) == cluster.link(b, other) &&
            cluster.link(other, a) == cluster.link(other, b));
  });
}

std::optional<Count> time_on(const OpGraph& graph, OpId op, const Device& device) {
  if (graph[op].pin.value_or(device.name) != device.name) return std::nullopt;
  std::optional<Time> time;
  if (const auto any = graph.find_kind(kAnyKind)) time = graph.times(*any)[op];
  if (const auto kind = graph.find_kind(device.kind); kind && graph.times(*kind)[op].has_value())
    time = graph.times(*kind)[op];
  if (!time.has_value()) return std::nullopt;
  return scale_up(time->count(), kFullSpeed.count(), device.speed.count(), "compute time");
}

Instance tables(const OpGraph& graph, const Cluster& cluster) {
  Instance in;
  in.num_ops = graph.num_ops();
  in.num_devices = cluster.num_devices();
  in.num_channels = cluster.num_channels();
  in.mode = cluster.communication();
  in.before.resize(in.num_ops);
  in.reads.resize(in.num_ops);
  in.tensors.resize(graph.num_tensors());
  in.ancestor.assign(in.num_ops, std::vector<bool>(in.num_ops, false));
  for (const OpId op : graph.ops()) {
    in.time.emplace_back();
    for (const DeviceId device : cluster.devices())
      in.time.back().push_back(time_on(graph, op, cluster[device]));
    in.variable.push_back(graph[op].variable);
    in.permanent.push_back(graph[op].variable ? graph.size(*graph.outputs(op).begin()).count()
                                              : graph[op].permanent.count());
    in.temporary.push_back(graph[op].temporary.count());
    in.group.push_back(graph[op].group ? std::optional(graph[op].group->index()) : std::nullopt);
    for (const Edge& edge : graph.in_edges(op)) {
      in.before[op.index()].push_back(edge.from.index());
      if (edge.tensor) in.reads[op.index()].push_back(edge.tensor->index());
      if (edge.tensor) in.tensors[edge.tensor->index()].readers.push_back(op.index());
    }
    const auto outputs = graph.outputs(op);
    const Index begin = outputs.empty() ? 0 : (*outputs.begin()).index();
    in.outputs.emplace_back(begin, begin + outputs.size());
    for (const TensorId tensor : outputs) {
      Instance::Tensor& row = in.tensors[tensor.index()];
      row.producer = op.index();
      row.bytes = graph.size(tensor).count();
      row.kept =
          graph.memory_mode() == MemoryMode::kRetain && !graph[op].backward && !graph[op].variable;
    }
  }
  in.transfer.assign(graph.num_tensors(),
                     std::vector(in.num_devices, std::vector<Count>(in.num_devices, 0)));
  in.channels.assign(in.num_devices, std::vector<std::vector<Index>>(in.num_devices));
  in.twins.assign(in.num_devices, std::vector<bool>(in.num_devices, false));
  for (const DeviceId from : cluster.devices()) {
    in.capacity.push_back(cluster[from].capacity.count());
    for (const DeviceId to : cluster.devices()) {
      if (from == to) continue;
      const Link& link = cluster.link(from, to);
      for (const TensorId tensor : graph.tensors())
        in.transfer[tensor.index()][from.index()][to.index()] =
            link.transfer_time(graph.size(tensor)).count();
      for (const ChannelId channel : link.channels)
        in.channels[from.index()][to.index()].push_back(channel.index());
      in.twins[from.index()][to.index()] = twins(graph, cluster, from, to);
    }
  }
  for (const OpId op : graph.topological_order()) {
    in.order.push_back(op.index());
    for (const Index parent : in.before[op.index()]) {
      in.ancestor[parent][op.index()] = true;
      for (Index a = 0; a < in.num_ops; ++a)
        if (in.ancestor[a][parent]) in.ancestor[a][op.index()] = true;
    }
  }
  return in;
}

using Devices = std::vector<Index>;              // by operator
using Orders = std::vector<std::vector<Index>>;  // by device

// Plays one placement in one order, moment by moment.
class Replay {
 public:
  explicit Replay(const Instance& instance) : in_(instance) {}

  // The makespan, unless it reaches `limit`, the order waits for itself or memory runs out.
  std::optional<Count> run(const Devices& device, const Orders& orders, Count limit) {
    device_ = &device;
    start_.assign(in_.num_ops, 0);
    end_.assign(in_.num_ops, std::nullopt);
    finished_.assign(in_.num_ops, false);
    arrived_.assign(in_.tensors.size(), std::vector<bool>(in_.num_devices, false));
    next_.assign(in_.num_devices, 0);
    in_free_.assign(in_.num_devices, 0);
    out_free_.assign(in_.num_devices, 0);
    channel_free_.assign(in_.num_channels, 0);
    sends_.clear();
    Index left = in_.num_ops;
    Count now = 0;
    for (Index op = 0; op < in_.num_ops; ++op) {
      if (!in_.variable[op]) continue;
      end_[op] = 0;
      finished_[op] = true;
      --left;
      const Index tensor = in_.outputs[op].first;
      for (Index to = 0; to < in_.num_devices; ++to)
        if (to != device[op] && read_on(tensor, to)) send(tensor, to, 0);
    }
    while (true) {
      while (const Index settled = settle(now, orders)) left -= settled - 1;
      if (left == 0) return fits(now) ? std::optional(now) : std::nullopt;
      std::optional<Count> soonest;
      const auto consider = [&](Count at) {
        if (!soonest.has_value() || at < *soonest) soonest = at;
      };
      for (Index op = 0; op < in_.num_ops; ++op)
        if (end_[op].has_value() && !finished_[op]) consider(*end_[op]);
      for (const Send& send : sends_)
        if (send.end > now) consider(send.end);
      if (!soonest.has_value() || *soonest >= limit) return std::nullopt;
      now = *soonest;
    }
  }

 private:
  struct Send {
    Index tensor, from, to;
    Count start, end;
  };

  // One round of what happens at `now`: finishes, requests and arrivals, then starts. Returns
  // 0 when nothing happened, else 1 + the number of operators that finished.
  Index settle(Count now, const Orders& orders) {
    Index finishes = 0;
    bool changed = false;
    for (Send& send : sends_)
      if (send.end == now && !arrived_[send.tensor][send.to])
        changed = arrived_[send.tensor][send.to] = true;
    std::vector<std::pair<Index, Index>> requests;
    for (Index op = 0; op < in_.num_ops; ++op) {
      if (finished_[op] || end_[op] != now) continue;
      finished_[op] = true;
      ++finishes;
      for (Index tensor = in_.outputs[op].first; tensor < in_.outputs[op].second; ++tensor)
        for (Index to = 0; to < in_.num_devices; ++to)
          if (to != (*device_)[op] && read_on(tensor, to)) requests.emplace_back(tensor, to);
    }
    std::ranges::sort(requests);
    for (const auto& [tensor, to] : requests) send(tensor, to, now);
    for (Index d = 0; d < in_.num_devices; ++d) {
      if (next_[d] == orders[d].size()) continue;
      if (next_[d] > 0 && !finished_[orders[d][next_[d] - 1]]) continue;
      const Index op = orders[d][next_[d]];
      if (!may_start(op)) continue;
      ++next_[d];
      start_[op] = now;
      end_[op] = now + *in_.time[op][d];
      changed = true;
    }
    return changed || finishes > 0 ? finishes + 1 : 0;
  }

  bool read_on(Index tensor, Index device) const {
    return std::ranges::any_of(in_.tensors[tensor].readers,
                               [&](Index op) { return (*device_)[op] == device; });
  }

  bool may_start(Index op) const {
    const Index here = (*device_)[op];
    return std::ranges::all_of(in_.before[op], [&](Index p) { return finished_[p]; }) &&
           std::ranges::all_of(in_.reads[op], [&](Index tensor) {
             return (*device_)[in_.tensors[tensor].producer] == here || arrived_[tensor][here];
           });
  }

  void send(Index tensor, Index to, Count now) {
    const Index from = (*device_)[in_.tensors[tensor].producer];
    std::vector<Count*> queues;
    if (in_.mode != CommunicationMode::kParallel) {
      // In sequential mode a device has one queue: its outgoing one stands for both.
      queues.push_back(&out_free_[from]);
      queues.push_back(in_.mode == CommunicationMode::kDuplex ? &in_free_[to] : &out_free_[to]);
      for (const Index channel : in_.channels[from][to]) queues.push_back(&channel_free_[channel]);
    }
    Count start = now;
    for (const Count* queue : queues) start = std::max(start, *queue);
    const Count end = start + in_.transfer[tensor][from][to];
    for (Count* queue : queues) *queue = end;
    if (end == now) arrived_[tensor][to] = true;
    sends_.push_back({tensor, from, to, start, end});
  }

  // Every device holds what lives at once. It suffices to look when something begins.
  bool fits(Count makespan) {
    for (Index d = 0; d < in_.num_devices; ++d) {
      Count permanent = 0;
      lives_.clear();
      for (Index op = 0; op < in_.num_ops; ++op) {
        if ((*device_)[op] != d) continue;
        permanent += in_.permanent[op];
        if (in_.variable[op]) continue;
        lives_.push_back({start_[op], *end_[op], in_.temporary[op]});
        for (Index t = in_.outputs[op].first; t < in_.outputs[op].second; ++t)
          lives_.push_back({start_[op], dies(t, d, makespan), in_.tensors[t].bytes});
      }
      for (const Send& send : sends_)
        if (send.to == d)
          lives_.push_back(
              {send.start, dies(send.tensor, d, makespan), in_.tensors[send.tensor].bytes});
      if (permanent > in_.capacity[d]) return false;
      for (const Life& moment : lives_) {
        Count held = permanent;
        for (const Life& life : lives_)
          if (life.begin <= moment.begin &&
              (life.end > moment.begin || (life.begin == life.end && life.end == moment.begin)))
            held += life.bytes;
        if (held > in_.capacity[d]) return false;
      }
    }
    return true;
  }

  Count dies(Index tensor, Index device, Count makespan) const {
    const Instance::Tensor& row = in_.tensors[tensor];
    if (row.kept || row.readers.empty()) return makespan;
    Count last = 0;
    for (const Index reader : row.readers)
      if ((*device_)[reader] == device) last = std::max(last, *end_[reader]);
    if ((*device_)[row.producer] == device)
      for (const Send& send : sends_)
        if (send.tensor == tensor) last = std::max(last, send.end);
    return last;
  }

  struct Life {
    Count begin, end, bytes;
  };

  const Instance& in_;
  const Devices* device_ = nullptr;
  std::vector<Count> start_;
  std::vector<std::optional<Count>> end_;
  std::vector<bool> finished_;
  std::vector<std::vector<bool>> arrived_;  // [tensor][device]
  std::vector<Index> next_;                 // [device]: position in its order
  std::vector<Count> in_free_, out_free_, channel_free_;
  std::vector<Send> sends_;
  std::vector<Life> lives_;
};

class Search {
 public:
  Search(const OpGraph& graph, const Cluster& cluster)
      : in_(tables(graph, cluster)), replay_(in_) {}

  void run(bool any_plan) {
    any_plan_ = any_plan;
    Devices device(in_.num_ops, 0);
    std::vector<Count> room = in_.capacity;
    assign(0, device, room);
    std::ranges::stable_sort(candidates_, {}, &Candidate::least);
    for (const Candidate& candidate : candidates_) {
      if (done_ || candidate.least >= best_) break;
      Orders orders(in_.num_devices);
      std::vector<bool> used(in_.num_ops, false);
      device_ = candidate.device;
      least_ = candidate.least;
      arrange(0, orders, used);
    }
  }

  bool found() const { return found_; }
  Optimum optimum() const {
    Optimum result{Time(best_), {}};
    result.placed.order.emplace(in_.num_devices);
    for (const Index d : best_device_) result.placed.device.push_back(DeviceId(d));
    for (Index op = 0; op < in_.num_ops; ++op)
      if (in_.variable[op]) (*result.placed.order)[DeviceId(best_device_[op])].push_back(OpId(op));
    for (Index d = 0; d < in_.num_devices; ++d)
      for (const Index op : best_orders_[d])
        (*result.placed.order)[DeviceId(d)].push_back(OpId(op));
    return result;
  }

 private:
  struct Candidate {
    Devices device;
    Count least;  // no order of this placement is faster
  };

  void assign(Index op, Devices& device, std::vector<Count>& room) {
    if (op == in_.num_ops) {
      if (!redundant(device)) candidates_.push_back({device, least_makespan(device)});
      return;
    }
    for (Index d = 0; d < in_.num_devices; ++d) {
      if (!in_.time[op][d].has_value() || room[d] < in_.permanent[op]) continue;
      bool colocated = true;
      for (Index other = 0; other < op; ++other)
        if (in_.group[op].has_value() && in_.group[other] == in_.group[op])
          colocated = colocated && device[other] == d;
      if (!colocated) continue;
      device[op] = d;
      room[d] -= in_.permanent[op];
      assign(op + 1, device, room);
      room[d] += in_.permanent[op];
    }
  }

  // Exchanging twin devices gives another plan of the same length, so one that enters a device
  // before its smaller twin may be skipped; unless one tensor goes to several devices, since
  // simultaneous requests of it are served by device id.
  bool redundant(const Devices& device) const {
    for (const Instance::Tensor& tensor : in_.tensors) {
      std::optional<Index> destination;
      for (const Index reader : tensor.readers) {
        if (device[reader] == device[tensor.producer]) continue;
        if (destination.has_value() && *destination != device[reader]) return false;
        destination = device[reader];
      }
    }
    std::vector<bool> used(in_.num_devices, false);
    for (const Index d : device) {
      for (Index smaller = 0; !used[d] && smaller < d; ++smaller)
        if (in_.twins[smaller][d] && !used[smaller]) return true;
      used[d] = true;
    }
    return false;
  }

  Count least_makespan(const Devices& device) const {
    std::vector<Count> end(in_.num_ops, 0), load(in_.num_devices, 0);
    Count least = 0;
    for (const Index op : in_.order) {
      Count start = 0;
      for (const Index parent : in_.before[op]) start = std::max(start, end[parent]);
      for (const Index t : in_.reads[op]) {
        const Index from = in_.tensors[t].producer;
        start = std::max(start, end[from] + in_.transfer[t][device[from]][device[op]]);
      }
      end[op] = start + *in_.time[op][device[op]];
      load[device[op]] += *in_.time[op][device[op]];
      least = std::max({least, end[op], load[device[op]]});
    }
    return least;
  }

  // All orders of all devices, device after device.
  void arrange(Index d, Orders& orders, std::vector<bool>& used) {
    if (done_ || least_ >= best_) return;
    if (d == in_.num_devices) {
      if (const auto makespan = replay_.run(device_, orders, best_)) {
        found_ = true;
        done_ = any_plan_;
        best_ = *makespan;
        best_device_ = device_;
        best_orders_ = orders;
      }
      return;
    }
    bool complete = true;
    for (Index op = 0; op < in_.num_ops; ++op) {
      if (device_[op] != d || used[op] || in_.variable[op]) continue;
      complete = false;
      bool first = true;
      for (Index other = 0; other < in_.num_ops; ++other)
        if (device_[other] == d && !used[other] && !in_.variable[other] && in_.ancestor[other][op])
          first = false;
      if (!first) continue;
      used[op] = true;
      orders[d].push_back(op);
      arrange(d, orders, used);
      orders[d].pop_back();
      used[op] = false;
    }
    if (complete) arrange(d + 1, orders, used);
  }

  Instance in_;
  Replay replay_;
  std::vector<Candidate> candidates_;
  bool any_plan_ = false, done_ = false, found_ = false;
  Devices device_;
  Count least_ = 0;
  Count best_ = std::numeric_limits<Count>::max();
  Devices best_device_;
  Orders best_orders_;
};

}  // namespace

std::optional<Optimum> optimal_makespan(const OpGraph& graph, const Cluster& cluster) {
  Search search(graph, cluster);
  search.run(/*any_plan=*/false);
  if (!search.found()) return std::nullopt;
  return search.optimum();
}

bool feasible(const OpGraph& graph, const Cluster& cluster) {
  Search search(graph, cluster);
  search.run(/*any_plan=*/true);
  return search.found();
}

}  // namespace baechi::testing
