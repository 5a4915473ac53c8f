// SPDX-License-Identifier: Apache-2.0
// The objectives of the dnn-partitioning research, so that placements can be compared under them:
// they are not our simulator, and their numbers mean something else (docs/lab/dnn_partitioning.md).
// Beyond the paper.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "baechi/base/cancel.h"
#include "baechi/base/id.h"
#include "baechi/base/units.h"
#include "baechi/cost/cost_model.h"
#include "baechi/schedule/schedule.h"

namespace baechi {

enum class DnnpObjective : std::uint8_t { kLatency, kMaxLoad };

struct DnnpObjectiveEntry {
  std::string_view name;  // on the command line and in Python: "dnnp-latency"
  DnnpObjective objective;
  std::string_view summary;
};
std::span<const DnnpObjectiveEntry> dnnp_objectives();
DnnpObjective find_dnnp_objective(std::string_view name);  // InputError lists the known names

// Devices of this kind are the host: unlimited memory, any number of operators at once, and no
// price on communication. All others are accelerators.
inline constexpr std::string_view kHostKind = "cpu";

// What moving an operator's outputs between a device and the host takes: on the links to and from
// the first host, or half of what it takes to another accelerator where there is no host. Tensors
// without consumers stay.
struct DnnpCosts {
  explicit DnnpCosts(const CostModel& costs, const CancelFlag* cancel = nullptr);

  bool is_host(DeviceId device) const { return host_[device]; }
  Time out(OpId op, DeviceId device) const {
    return out_[op.index() * host_.size() + device.index()];
  }
  Time in(OpId op, DeviceId device) const {
    return in_[op.index() * host_.size() + device.index()];
  }

 private:
  IdVector<DeviceId, bool> host_;
  std::vector<Time> out_, in_;
};

struct DnnpCall {  // one invocation of an accelerator
  DeviceId device{0};
  std::size_t operators = 0;
  Time finish;
};

struct DnnpScore {
  std::optional<Time> value;  // absent: calls wait for each other (latency)
  // Max-load: the load of every accelerator; the hosts are one, and the first of them carries it.
  IdVector<DeviceId, Time> loads;
  std::vector<DnnpCall> calls;       // latency: by device, then in order
  IdVector<DeviceId, Bytes> memory;  // permanent memory of what is placed there, and nothing else
  bool fits = false;                 // no accelerator has more than its capacity
};

// Throws InputError when an operator is on a device that cannot run it, or a colocation group is
// parted, and Cancelled when asked to stop. O(devices * (operators + edges)).
DnnpScore dnnp_score(const CostModel& costs, const Placement& placement, DnnpObjective objective,
                     const CancelFlag* cancel = nullptr);

}  // namespace baechi
