// SPDX-License-Identifier: Apache-2.0
// The critical path of a schedule: operators and transfers one after the other, without a gap from
// the start of the step to its end, each of which had to wait for the one before it. Beyond the
// paper.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "baechi/base/id.h"
#include "baechi/base/units.h"
#include "baechi/cluster/cluster.h"
#include "baechi/graph/op_graph.h"
#include "baechi/schedule/schedule.h"

namespace baechi {

// Why a link of the path could not start before the link before it had ended.
enum class CriticalReason : std::uint8_t {
  kStepStart,    // it is the first: it starts with the step, or when its host has asked for it
  kInput,        // an operator reads what the operator before it made on its device
  kControl,      // an operator is ordered after the operator before it
  kArrival,      // an operator reads the tensor that the transfer before it brought
  kProduced,     // a transfer carries what the operator before it made
  kBusyDevice,   // the operator before it kept the device, or the transfer, where sends block
  kBusyQueue,    // the transfer before it was ahead in the queue of a device
  kBusyChannel,  // the transfer before it was ahead in the queue of a shared channel
};

struct CriticalLink {
  std::optional<std::size_t> transfer = {};  // into Schedule::transfers; absent: `op` computes
  OpId op{0};                                // computes, or made the tensor that is transferred
  Time start = {}, end = {};
  Time ready = {};  // when it had all it needs, but for a free device or free queues; <= start
  CriticalReason reason = CriticalReason::kStepStart;
  std::optional<DeviceId> queue = {};     // with kBusyQueue: whose
  std::optional<ChannelId> channel = {};  // with kBusyChannel

  friend bool operator==(const CriticalLink&, const CriticalLink&) = default;
};

// What the time of one link goes to, in the eyes of the link after it: an operator (a transfer)
// whose result the next link does not need is a busy device (a queue) that the next one waits for.
enum class CriticalUse : std::uint8_t { kCompute, kTransfer, kDeviceWait, kQueueWait };

// Neighbouring links in one place: operators of one device, or transfers.
struct CriticalSegment {
  std::size_t first, last;              // links, both included
  std::optional<DeviceId> device = {};  // that computes; absent: transfers
  Time start = {}, end = {};
  Time waiting = {};  // of it: links with use kDeviceWait or kQueueWait

  friend bool operator==(const CriticalSegment&, const CriticalSegment&) = default;
};

struct CriticalPath {
  // In the order of time: the first starts at 0 or as late as its host asks for it, each starts when the one before it ends, the last
  // ends with the step. Empty for a graph without operators.
  std::vector<CriticalLink> links;

  CriticalUse use(std::size_t link) const;
  // Of all links; over all uses they add up to the makespan without the start of the first.
  Time total(CriticalUse use) const;

  // All of the path, in the order of time. Requires the schedule that it is the path of.
  std::vector<CriticalSegment> segments(const Schedule& schedule) const;
};

// Where several things ended at the same moment, data comes before a busy device, and then the
// smaller id. About O((ops + edges + transfers) log): sorts, then walks back from the end. Throws
// InputError for a schedule in which something starts for no reason (the simulator makes none).
CriticalPath critical_path(const OpGraph& graph, const Cluster& cluster, const Schedule& schedule);

}  // namespace baechi
