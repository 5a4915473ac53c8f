// SPDX-License-Identifier: Apache-2.0
#include "baechi/place/partition/balance.h"

#include <algorithm>
#include <functional>
#include <iterator>
#include <utility>

namespace baechi {
namespace {

double fourth_power(double x) { return x * x * x * x; }

}  // namespace

Balance::Balance(const CostModel& costs, const Hypergraph& graph,
                 const std::vector<DeviceId>& devices, const Prices& prices, double memory_share)
    : costs_(costs),
      graph_(graph),
      devices_(devices),
      prices_(prices),
      place_(costs.cluster().num_devices()),
      is_nearby_(costs.cluster().num_devices()),
      change_(costs.cluster().num_devices()),
      changes_(costs.cluster().num_devices()) {
  for (const DeviceId device : costs.cluster().devices())
    capacity_.push_back(static_cast<double>(costs.cluster()[device].capacity.count()) *
                        memory_share);
  for (std::size_t i = 0; i < devices.size(); ++i) place_[devices[i]] = i;
}

void Balance::load(Parts parts) {
  const std::size_t n = costs_.cluster().num_devices();
  parts_ = std::move(parts);
  compute_.assign(n, 0);
  queue_.assign(n, 0);
  bytes_.assign(n, 0);
  readers_.assign(graph_.nets.size() * n, 0);
  reading_.assign(graph_.nets.size(), 0);
  for (const VertexId vertex : graph_.vertices.keys()) {
    compute_[parts_[vertex]] += time(vertex, parts_[vertex]);
    bytes_[parts_[vertex]] += static_cast<double>(graph_.vertices[vertex].bytes);
  }
  for (const NetId net : graph_.nets.keys()) {
    const DeviceId home = parts_[graph_.nets[net].maker];
    const auto takes = static_cast<double>(graph_.nets[net].time);
    for (const VertexId reader : graph_.nets[net].readers) {
      const DeviceId device = parts_[reader];
      if (readers(net, device)++ > 0 || !place_[device].has_value()) continue;
      ++reading_[net];
      if (device == home) continue;
      queue_[home] += takes;
      queue_[device] += takes;
    }
  }
  sum_up();
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
    DeviceId last = home;
    for (const DeviceId device : candidates(vertex)) {
      if (device == last || !may_run(vertex, device)) continue;
      last = device;
      work_ += devices_.size() * (1 + graph_.nets_of[vertex].size());
      if (device == home || !may_be_below(best_value, vertex, device)) continue;
      move(vertex, device);
      if (const double there = value(); there < best_value) {
        best_value = there;
        best = device;
      }
      move(vertex, home);
    }
    if (!best.has_value()) continue;
    move(vertex, *best);
    sum_up();
    moved = true;
    now = best_value;
  }
  return moved;
}

double Balance::value() const {
  double worst = 0, fourth = 0, traffic = 0, over = 0;
  for (const DeviceId device : devices_) {
    worst = std::max(worst, busy(device));
    traffic += queue_[device];
    over += overrun(device, bytes_[device]);
  }
  if (worst == 0) return over;
  for (const DeviceId device : devices_) {
    fourth += fourth_power(busy(device) / worst);
  }
  return value_of(worst, fourth, traffic, over);
}

// The busiest device counts most, but taking load off the next ones is progress as well.
double Balance::value_of(double worst, double fourth, double traffic, double over) const {
  const auto count = static_cast<double>(devices_.size());
  return (worst * (1 + 0.1 * fourth / count) + prices_.traffic * traffic / count) * (1 + 10 * over);
}

void Balance::sum_up() {
  constexpr std::ptrdiff_t kBusiest = 16;
  busiest_ = devices_;
  const auto end = busiest_.begin() + std::min(kBusiest, std::ssize(busiest_));
  std::ranges::partial_sort(busiest_, end, std::greater<>(),
                            [&](DeviceId device) { return busy(device); });
  busiest_.erase(end, busiest_.end());
  sums_ = {.worst = busy(busiest_.front())};
  for (const DeviceId device : devices_) {
    sums_.fourth += fourth_power(busy(device) / sums_.worst);
    sums_.traffic += queue_[device];
    sums_.over += overrun(device, bytes_[device]);
  }
}

// False only where value() would not be below the limit, were the vertex there: from the sums, whose
// rounding is far less than what is left for it.
bool Balance::may_be_below(double limit, VertexId vertex, DeviceId to) {
  const DeviceId from = parts_[vertex];
  changed_.clear();
  const auto add = [&](DeviceId device, double takes) {
    if (!changes_[device]) {
      changes_[device] = true;
      change_[device] = 0;
      changed_.push_back(device);
    }
    change_[device] += takes;
  };
  add(from, 0);
  add(to, 0);
  queue_changes(vertex, to, add);

  const auto bytes = static_cast<double>(graph_.vertices[vertex].bytes);
  Sums sums = sums_;
  sums.worst = 0;
  for (const DeviceId device : changed_) {
    if (!place_[device].has_value()) continue;
    const double moved = device == to ? 1 : device == from ? -1 : 0;
    const double takes = moved == 0 ? 0 : time(vertex, device);
    const double after =
        compute_[device] + moved * takes + prices_.queue * (queue_[device] + change_[device]);
    sums.worst = std::max(sums.worst, after);
    sums.fourth += fourth_power(after / sums_.worst) - fourth_power(busy(device) / sums_.worst);
    sums.traffic += change_[device];
    if (moved != 0)
      sums.over +=
          overrun(device, bytes_[device] + moved * bytes) - overrun(device, bytes_[device]);
  }
  const auto other = std::ranges::find_if(busiest_, [&](DeviceId d) { return !changes_[d]; });
  for (const DeviceId device : changed_) changes_[device] = false;
  if (other == busiest_.end()) {
    if (busiest_.size() < devices_.size()) return true;  // the busiest of the others is not known
  } else {
    sums.worst = std::max(sums.worst, busy(*other));
  }

  constexpr double kRounding = 1e-10, kMuchLess = 0.1;
  if (!(sums.worst > sums_.worst * kMuchLess)) return true;  // little would be left of the digits
  sums.fourth *= fourth_power(sums_.worst / sums.worst);
  const double there = value_of(sums.worst, sums.fourth, sums.traffic, sums.over);
  return !(there > limit * (1 + kRounding));
}

bool Balance::on_the_border(VertexId vertex) const {
  const DeviceId home = parts_[vertex];
  return std::ranges::any_of(graph_.nets_of[vertex], [&](NetId net) {
    return parts_[graph_.nets[net].maker] != home ||
           readers(net, home) != graph_.nets[net].readers.size();
  });
}

// Where a neighbour is; with few devices, anywhere.
const std::vector<DeviceId>& Balance::candidates(VertexId vertex) {
  if (devices_.size() <= kFewDevices) return devices_;
  for (const DeviceId device : nearby_) is_nearby_[device] = false;
  nearby_.clear();
  const auto add = [&](DeviceId device) {
    if (is_nearby_[device] || !place_[device].has_value()) return;
    is_nearby_[device] = true;
    nearby_.push_back(device);
  };
  for (const NetId net : graph_.nets_of[vertex]) {
    const std::vector<VertexId>& all = graph_.nets[net].readers;
    const DeviceId home = parts_[graph_.nets[net].maker];
    if (all.size() > devices_.size()) {  // the same ones, without a look at every reader
      for (const DeviceId device : devices_)
        if (device == home || readers(net, device) > 0) add(device);
      continue;
    }
    const std::ptrdiff_t known = std::ssize(nearby_);
    add(home);
    for (const VertexId reader : all) add(parts_[reader]);
    std::ranges::sort(nearby_.begin() + known, nearby_.end(), {},
                      [&](DeviceId device) { return *place_[device]; });
  }
  return nearby_;
}

// Tells what the queues get and lose when the vertex leaves its device for another one.
template <class Add>
void Balance::queue_changes(VertexId vertex, DeviceId to, const Add& add) const {
  const DeviceId from = parts_[vertex];
  const auto reads = [&](NetId net, DeviceId device) {
    return place_[device].has_value() && readers(net, device) > 0;
  };
  for (const NetId net : graph_.nets_of[vertex]) {
    const VertexId maker = graph_.nets[net].maker;
    const auto takes = static_cast<double>(graph_.nets[net].time);
    const auto all = static_cast<double>(reading_[net]);
    if (maker == vertex) {  // to all who read it but the device itself
      const double left = reads(net, from) ? 1 : 0, joined = reads(net, to) ? 1 : 0;
      add(from, takes * left - takes * (all - left));
      add(to, takes * (all - joined) - takes * joined);
      continue;
    }
    const DeviceId home = parts_[maker];
    if (from != home && reads(net, from) && readers(net, from) == 1) {
      add(home, -takes);
      add(from, -takes);
    }
    if (to != home && place_[to].has_value() && readers(net, to) == 0) {
      add(home, takes);
      add(to, takes);
    }
  }
}

void Balance::move(VertexId vertex, DeviceId to) {
  const DeviceId from = parts_[vertex];
  queue_changes(vertex, to, [&](DeviceId device, double takes) { queue_[device] += takes; });
  compute_[from] -= time(vertex, from);
  compute_[to] += time(vertex, to);
  bytes_[from] -= static_cast<double>(graph_.vertices[vertex].bytes);
  bytes_[to] += static_cast<double>(graph_.vertices[vertex].bytes);
  parts_[vertex] = to;
  for (const NetId net : graph_.nets_of[vertex]) {
    if (graph_.nets[net].maker == vertex) continue;
    if (--readers(net, from) == 0 && place_[from].has_value()) --reading_[net];
    if (readers(net, to)++ == 0 && place_[to].has_value()) ++reading_[net];
  }
}

}  // namespace baechi
