// SPDX-License-Identifier: Apache-2.0
// One level of `partition` under change: which device has which vertex, and how busy that makes the
// devices. Beyond the paper.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "baechi/base/id.h"
#include "baechi/base/random.h"
#include "baechi/cost/cost_model.h"
#include "baechi/place/partition/hypergraph.h"

namespace baechi {

using Parts = IdVector<VertexId, DeviceId>;

// With more of them, each number of devices that is tried takes so long that few are tried, with
// one start each, and a vertex moves to its neighbours only.
inline constexpr std::size_t kFewDevices = 8;

struct Prices {
  double queue;    // of a device's queue time beside its compute time
  double traffic;  // of all transfers together, whoever carries them
};

// Refers to all that it is given. What a move changes is found from the few devices that it makes
// more or less busy, however many there are; times and bytes are whole numbers, which doubles add up
// without an error.
class Balance {
 public:
  Balance(const CostModel& costs, const Hypergraph& graph, const std::vector<DeviceId>& devices,
          const Prices& prices, double memory_share);

  void load(Parts parts);
  // Once through all vertices in random order; true if something moved.
  bool improve(Random& random);

  double value() const;
  bool may_run(VertexId vertex, DeviceId device) const {
    const Vertex& v = graph_.vertices[vertex];
    if (v.pin.has_value() && *v.pin != device) return false;
    return v.can_run_on(costs_.class_of(device).index());
  }
  const Parts& parts() const { return parts_; }
  // Devices looked at, for each move and each of its nets.
  std::uint64_t work() const { return work_; }

 private:
  double time(VertexId vertex, DeviceId device) const {
    return static_cast<double>(graph_.vertices[vertex].time[costs_.class_of(device).index()]);
  }
  std::uint32_t& readers(NetId net, DeviceId device) {
    return readers_[net.index() * costs_.cluster().num_devices() + device.index()];
  }
  std::uint32_t readers(NetId net, DeviceId device) const {
    return readers_[net.index() * costs_.cluster().num_devices() + device.index()];
  }
  double busy(DeviceId device) const { return compute_[device] + prices_.queue * queue_[device]; }
  double overrun(DeviceId device, double bytes) const {
    return std::max(0.0, bytes / capacity_[device] - 1);
  }
  double value_of(double worst, double fourth, double traffic, double over) const;

  bool on_the_border(VertexId vertex) const;
  const std::vector<DeviceId>& candidates(VertexId vertex);
  template <class Add>
  void queue_changes(VertexId vertex, DeviceId to, const Add& add) const;
  void sum_up();
  bool may_be_below(double limit, VertexId vertex, DeviceId to);
  void move(VertexId vertex, DeviceId to);

  const CostModel& costs_;
  const Hypergraph& graph_;
  const std::vector<DeviceId>& devices_;
  Prices prices_;
  IdVector<DeviceId, double> capacity_;
  Parts parts_;
  IdVector<DeviceId, double> compute_, queue_, bytes_;
  std::vector<std::uint32_t> readers_;      // of each net on each device, the maker's left out
  IdVector<NetId, std::uint32_t> reading_;  // how many of devices_ read it
  std::uint64_t work_ = 0;

  IdVector<DeviceId, std::optional<std::size_t>> place_;  // in devices_
  struct Sums {  // over devices_, where the last move has left them
    double worst = 0, fourth = 0, traffic = 0, over = 0;
  } sums_;
  std::vector<DeviceId> busiest_;  // some of devices_, the busiest first

  std::vector<DeviceId> nearby_;  // scratch, like all that follows
  IdVector<DeviceId, bool> is_nearby_;
  IdVector<DeviceId, double> change_;  // of queue_
  IdVector<DeviceId, bool> changes_;
  std::vector<DeviceId> changed_;
};

}  // namespace baechi
