// SPDX-License-Identifier: Apache-2.0
// Is the second GPU worth it: what each device of a cluster buys, and which of them are enough.
// Beyond the paper.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "baechi/base/units.h"
#include "baechi/cluster/cluster.h"
#include "baechi/graph/op_graph.h"
#include "baechi/plan/request/request.h"
#include "baechi/plan/steps/sizes.h"

namespace baechi {

struct DeviceWorth {
  std::string device;
  std::optional<Time> step_without = {};  // absent: no plan was found without it
  std::string reason;                     // then why
  Bytes capacity = {}, peak = {};         // of the plan on all devices
};

struct DevicesWorth {
  std::optional<Time> step = {};    // on all devices; absent: no plan was found there
  std::uint32_t micro_batches = 1;  // that it consists of
  std::string reason;               // then why; the rest is empty
  std::vector<DeviceWorth> devices;
  // The fewest that were found on which a step takes as long, up to a hundredth: devices leave one
  // by one, first the one that is missed the least.
  std::vector<std::string> enough;
  Time step_of_enough = {};
};

// Plans for all devices and without each of them, then without one more as long as that costs
// nothing. A plan for fewer devices is one for more. `told`, if given, hears of each before it is
// planned. Throws InputError for more than kMostDevicesOfWorth devices.
inline constexpr std::size_t kMostDevicesOfWorth = 32;
DevicesWorth devices_worth(const GraphSizes& sizes, const ClusterSpec& cluster,
                           const StepRequest& request,
                           const std::function<void(const std::string&)>& told = {});

}  // namespace baechi
