// SPDX-License-Identifier: Apache-2.0
#include "baechi/place/partition/balance.h"

#include <algorithm>
#include <optional>
#include <utility>

namespace baechi {

Balance::Balance(const CostModel& costs, const Hypergraph& graph,
                 const std::vector<DeviceId>& devices, const Prices& prices, double memory_share)
    : costs_(costs), graph_(graph), devices_(devices), prices_(prices) {
  for (const DeviceId device : costs.cluster().devices())
    capacity_.push_back(static_cast<double>(costs.cluster()[device].capacity.count()) *
                        memory_share);
}

void Balance::load(Parts parts) {
  const std::size_t n = costs_.cluster().num_devices();
  parts_ = std::move(parts);
  compute_.assign(n, 0);
  queue_.assign(n, 0);
  bytes_.assign(n, 0);
  readers_.assign(graph_.nets.size() * n, 0);
  for (const VertexId vertex : graph_.vertices.keys()) {
    compute_[parts_[vertex]] += time(vertex, parts_[vertex]);
    bytes_[parts_[vertex]] += static_cast<double>(graph_.vertices[vertex].bytes);
  }
  for (const NetId net : graph_.nets.keys()) {
    for (const VertexId reader : graph_.nets[net].readers) ++readers(net, parts_[reader]);
    charge(net, 1);
  }
}

// Once through all vertices in random order; true if something moved.
bool Balance::improve(Random& random) {
  std::vector<VertexId> order(graph_.vertices.keys().begin(), graph_.vertices.keys().end());
  for (std::size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[random.below(i)]);
  bool moved = false;
  double now = value();
  constexpr std::size_t kLarge = 512;  // vertices: then only those with an end elsewhere may move
  const bool large = order.size() > kLarge;
  for (const VertexId vertex : order) {
    const DeviceId home = parts_[vertex];
    if (large && !on_the_border(vertex)) continue;
    std::optional<DeviceId> best;
    double best_value = now * (1 - 1e-9);
    for (const DeviceId device : candidates(vertex)) {
      if (device == parts_[vertex] || !may_run(vertex, device)) continue;
      work_ += devices_.size() * (1 + graph_.nets_of[vertex].size());
      move(vertex, device);
      if (const double there = value(); there < best_value) {
        best_value = there;
        best = device;
      }
    }
    move(vertex, best.value_or(home));
    if (best.has_value()) {
      moved = true;
      now = best_value;
    }
  }
  return moved;
}

double Balance::value() const {
  double worst = 0, fourth = 0, traffic = 0, over = 0;
  for (const DeviceId device : devices_) {
    const double busy = compute_[device] + prices_.queue * queue_[device];
    worst = std::max(worst, busy);
    traffic += queue_[device];
    over += std::max(0.0, bytes_[device] / capacity_[device] - 1);
  }
  if (worst == 0) return over;
  for (const DeviceId device : devices_) {
    const double part = (compute_[device] + prices_.queue * queue_[device]) / worst;
    fourth += part * part * part * part;
  }
  // The busiest device counts most, but taking load off the next ones is progress as well.
  const auto count = static_cast<double>(devices_.size());
  return (worst * (1 + 0.1 * fourth / count) + prices_.traffic * traffic / count) * (1 + 10 * over);
}

bool Balance::on_the_border(VertexId vertex) const {
  const DeviceId home = parts_[vertex];
  const std::size_t n = costs_.cluster().num_devices();
  return std::any_of(graph_.nets_of[vertex].begin(), graph_.nets_of[vertex].end(), [&](NetId net) {
    return parts_[graph_.nets[net].maker] != home ||
           readers_[net.index() * n + home.index()] != graph_.nets[net].readers.size();
  });
}

// Where a neighbour is; with few devices, anywhere.
const std::vector<DeviceId>& Balance::candidates(VertexId vertex) {
  if (devices_.size() <= kFewDevices) return devices_;
  nearby_.clear();
  for (const NetId net : graph_.nets_of[vertex])
    for (const DeviceId device : devices_)
      if ((readers(net, device) > 0 || parts_[graph_.nets[net].maker] == device) &&
          std::find(nearby_.begin(), nearby_.end(), device) == nearby_.end())
        nearby_.push_back(device);
  return nearby_;
}

// Adds (sign 1) or takes away (-1) what the net's transfers take of the queues.
void Balance::charge(NetId net, double sign) {
  const DeviceId home = parts_[graph_.nets[net].maker];
  const double time = sign * static_cast<double>(graph_.nets[net].time);
  for (const DeviceId device : devices_) {
    if (device == home || readers(net, device) == 0) continue;
    queue_[home] += time;
    queue_[device] += time;
  }
}

void Balance::move(VertexId vertex, DeviceId device) {
  const DeviceId from = parts_[vertex];
  if (from == device) return;
  for (const NetId net : graph_.nets_of[vertex]) charge(net, -1);
  compute_[from] -= time(vertex, from);
  compute_[device] += time(vertex, device);
  bytes_[from] -= static_cast<double>(graph_.vertices[vertex].bytes);
  bytes_[device] += static_cast<double>(graph_.vertices[vertex].bytes);
  parts_[vertex] = device;
  for (const NetId net : graph_.nets_of[vertex]) {
    if (graph_.nets[net].maker != vertex) {
      --readers(net, from);
      ++readers(net, device);
    }
    charge(net, 1);
  }
}

}  // namespace baechi
