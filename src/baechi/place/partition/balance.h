// SPDX-License-Identifier: Apache-2.0
// One level of `partition` under change: which device has which vertex, and how busy that makes the
// devices. Beyond the paper.
#pragma once

#include <cstddef>
#include <cstdint>
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

// Refers to all that it is given.
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
  bool on_the_border(VertexId vertex) const;
  const std::vector<DeviceId>& candidates(VertexId vertex);
  void charge(NetId net, double sign);
  void move(VertexId vertex, DeviceId device);

  const CostModel& costs_;
  const Hypergraph& graph_;
  const std::vector<DeviceId>& devices_;
  Prices prices_;
  IdVector<DeviceId, double> capacity_;
  Parts parts_;
  IdVector<DeviceId, double> compute_, queue_, bytes_;
  std::vector<std::uint32_t> readers_;  // of each net on each device, the maker's left out
  std::uint64_t work_ = 0;
  std::vector<DeviceId> nearby_;
};

}  // namespace baechi
