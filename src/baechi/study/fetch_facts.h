// SPDX-License-Identifier: Apache-2.0
// What a host sends and gets in a plan, and when each fetch is under way. Beyond the paper.
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "baechi/base/id.h"
#include "baechi/base/units.h"
#include "baechi/cluster/cluster.h"
#include "baechi/graph/unroll.h"
#include "baechi/schedule/plan.h"

namespace baechi {

struct FetchFacts {
  OpId of{0};                       // what made it: a variable, or an operator
  OpId reader{0};                   // the first on its device
  std::optional<OpId> during = {};  // the last there that has started before it
  DeviceId device{0};
  Bytes bytes = {};
  Time start = {}, end = {};  // of its transfer
  Time early = {};            // from its arrival to its reader's start

  friend bool operator==(const FetchFacts&, const FetchFacts&) = default;
};

struct LinkFacts {  // of one device's link with the host
  DeviceId device{0};
  std::size_t fetches = 0, puts = 0;
  Bytes fetched = {}, put = {};
  Time fetching = {}, putting = {};  // together

  friend bool operator==(const LinkFacts&, const LinkFacts&) = default;
};

struct HostFacts {
  std::vector<LinkFacts> links;     // of devices that it sends or gets anything
  std::vector<FetchFacts> fetches;  // what comes latest before its reader first, then the largest

  friend bool operator==(const HostFacts&, const HostFacts&) = default;
};

// Requires a plan of this step, the one with its fetches.
HostFacts host_facts(const StepGraph& step, const Cluster& cluster, const Plan& plan);

}  // namespace baechi
