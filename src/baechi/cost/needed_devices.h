// SPDX-License-Identifier: Apache-2.0
// A cluster without equal devices that a plan does not need, or without its slower ones. Beyond the
// paper.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <vector>

#include "baechi/base/id.h"
#include "baechi/cluster/cluster.h"
#include "baechi/cost/cost_model.h"
#include "baechi/schedule/schedule.h"

namespace baechi {

// Devices next to each other in the cluster that differ in their names alone (kind, speed, memory,
// links and channels are equal, nothing is pinned to them) stand for each other. A plan uses at
// most one device per operator, so of such a run it needs only as many. What is kept keeps its
// order: every plan of the whole cluster is a plan of this one under other names, and takes as
// long, to the last tie between transfers.
class NeededDevices {
 public:
  // Nothing when all devices are needed: no run is longer than the number of operators and kFew.
  // O(devices^2). The costs must outlive the result.
  static std::unique_ptr<const NeededDevices> of(const CostModel& costs);
  // The first `most` devices of each run, at least two. Nothing when no run is longer. It is for
  // methods that use the devices of a run in turn, the first of those that are alike: while a run's
  // last one is idle, what they do is what they would do on the whole cluster.
  static std::unique_ptr<const NeededDevices> first_of_each_run(const CostModel& costs,
                                                                std::size_t most);

  // Without the slower devices: the fastest class, and all but the slowest one where there are
  // three or more. None where something is pinned, or runs on what would be left out alone.
  static std::vector<std::unique_ptr<const NeededDevices>> of_faster_classes(
      const CostModel& costs);

  NeededDevices(const NeededDevices&) = delete;  // costs() refers to the cluster in here
  NeededDevices& operator=(const NeededDevices&) = delete;

  const CostModel& costs() const { return costs_; }
  // What a device of the small cluster is called in the whole one.
  DeviceId original(DeviceId device) const { return kept_[device]; }
  PlacedGraph on_all(PlacedGraph placed, std::size_t num_devices) const;
  // The last devices of the runs of which some were left out, as the small cluster calls them.
  const std::vector<DeviceId>& stand_ins() const { return stand_ins_; }

 private:
  static constexpr std::size_t kFew = 16;  // so many are kept even for fewer operators

  NeededDevices(const CostModel& costs, IdVector<DeviceId, DeviceId> kept,
                std::vector<DeviceId> stand_ins);

  IdVector<DeviceId, DeviceId> kept_;
  std::vector<DeviceId> stand_ins_;
  Cluster cluster_;
  CostModel costs_;
};

}  // namespace baechi
