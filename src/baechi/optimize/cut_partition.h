// SPDX-License-Identifier: Apache-2.0
// Cuts the graph into one part per device so that little has to be sent, in several ways, and keeps
// the one whose step is shortest. Beyond the paper.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <limits>
#include <optional>
#include <vector>

#include "baechi/cost/cost_model.h"
#include "baechi/optimize/contraction.h"
#include "baechi/optimize/cut_graph.h"
#include "baechi/optimize/list_schedule.h"

namespace baechi {

struct CutOptions {
  // A device's part of the work may exceed its share by so much; several are tried.
  std::vector<double> slacks = {0.2, 0.3, 0.6};
  // No part takes more of its device's memory, in the moment when one device alone would hold most;
  // the next share is tried when nothing fits with the one before. All of it, at last, for units
  // that nearly fill a device.
  std::vector<double> memory_shares = {0.92, 0.8, 1.0};
  std::size_t tries = 7;  // random starts per slack, on the coarsest graph
  std::uint64_t seed = 1;
  // The next memory share is tried as long as those before took less, in simulated operators.
  std::int64_t work = std::numeric_limits<std::int64_t>::max();
};

struct DeviceCut {
  ListSchedule schedule;
  Bytes over;             // that the devices hold more than they have, in sum; zero: it fits
  std::int64_t work = 0;  // that it took, in simulated operators
};

struct CutLevels {
  std::deque<CutGraph> graphs;  // the finest first
  std::vector<IdVector<CutUnitId, CutUnitId>> coarse_of;
};

// Any number of cuts of one graph, whose coarser graphs they share. Multilevel: pairs of units that
// many or large tensors join are united until few are left; these are cut, and the cut is improved
// level by level on the way back.
class DeviceCuts {
 public:
  // Operators of one label stay together. The costs must outlive it.
  DeviceCuts(const CostModel& costs, const OpLabels& group);

  // A device for every operator, and the order of the best list schedule. When none of the cuts
  // fits, by simulation, the one that is the least over. Absent on clusters of one device or of more
  // than kMaxCutDevices. May be asked from all threads.
  std::optional<DeviceCut> cut(const CutOptions& options = {}) const;

  // In simulated operators: that one cut takes at least, and making the coarser graphs.
  static std::int64_t work_of_one(const CostModel& costs);
  static std::int64_t work_of_levels(const CostModel& costs);

 private:
  const CostModel& costs_;
  IdVector<OpId, CutUnitId> unit_;
  IdVector<DeviceId, double> speed_;
  std::int64_t total_work_ = 0;
  CutLevels levels_;  // none: there is no cut
};

// One of them.
std::optional<DeviceCut> cut_partition(const CostModel& costs, const OpLabels& group,
                                       const CutOptions& options = {});

}  // namespace baechi
