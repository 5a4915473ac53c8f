// SPDX-License-Identifier: Apache-2.0
// What a choice of what is away makes of a step: the store gets an order, and the step is replayed.
// Beyond the paper.
#pragma once

#include <tuple>

#include "baechi/base/units.h"
#include "baechi/graph/residency.h"
#include "baechi/plan/residency/residency_choice.h"
#include "baechi/schedule/schedule.h"

namespace baechi {

struct ReplayedResidency {
  Residency residency;
  PlacedGraph placed;  // of with_fetches(step, residency)
  Time makespan;
  IdVector<DeviceId, Bytes> peaks;
  bool fits = false;
  Bytes over;  // what the fullest device lacks
  DeviceId fullest{0};

  // The less, the better: fits rather than not, then the shorter.
  std::tuple<bool, Bytes, Time> rating() const { return {!fits, over, makespan}; }
};

// By what the store's order is made.
struct StoreRule {
  bool first_come = false;  // no fetch goes before an update that may begin earlier
  bool queues = true;       // by the estimate, what a device sends waits for what it sent before
};

// From then on the start says when operators ran.
ReplayedResidency replay(const ResidencyProblem& problem, ResidencyStart& start,
                         Residency residency, StoreRule rule);

// In an order that a file can tell, if it fits so.
bool settle(const ResidencyProblem& problem, ReplayedResidency& found);

}  // namespace baechi
