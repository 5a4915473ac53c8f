// SPDX-License-Identifier: Apache-2.0
// What runs where, in which order, and when: plain values that flow between the stages.
#pragma once

#include <optional>
#include <vector>

#include "baechi/base/id.h"
#include "baechi/base/units.h"
#include "baechi/graph/op_graph.h"

namespace baechi {

// The device of every operator.
using Placement = IdVector<OpId, DeviceId>;

// The operators of every device in the order it runs them: a partition of the operators that agrees
// with the placement.
using DeviceOrder = IdVector<DeviceId, std::vector<OpId>>;

// A placement with the order in which each device works it off. Without an order, a device runs
// whichever operator became ready first (ties by id), as an eager framework's executor does.
struct PlacedGraph {
  Placement device;
  std::optional<DeviceOrder> order;
  // The order in which hosts ask for operators; absent: that in which they would start if asking
  // took no time. It matters on clusters with a host time only.
  std::optional<std::vector<OpId>> asking = {};

  friend bool operator==(const PlacedGraph&, const PlacedGraph&) = default;
};

struct OpSlot {
  DeviceId device{0};
  Time start, end;

  friend bool operator==(const OpSlot&, const OpSlot&) = default;
};

// One copy of a tensor on its way. `requested` is when its producer finished; it waits in its
// queues until `start`.
struct Transfer {
  TensorId tensor{0};
  DeviceId from{0}, to{0};
  Time requested, start, end;

  friend bool operator==(const Transfer&, const Transfer&) = default;
};

// When everything happens. Transfers are sorted by (tensor, to).
struct Schedule {
  IdVector<OpId, OpSlot> slots;
  std::vector<Transfer> transfers;
  Time makespan;
  IdVector<OpId, Time> asked = {};  // when its host has asked for it; empty without a host time

  friend bool operator==(const Schedule&, const Schedule&) = default;
};

Placement placement_of(const Schedule& schedule);

// All operators by start, then end, then place in the graph's topological order (which matters for
// operators that take no time): a topological order, as an operator starts after what it needs.
std::vector<OpId> sequence_of(const Schedule& schedule, const OpGraph& graph);

// Each device's operators in that sequence, but those of one moment that take no time in the order
// of their transfers, which tell who came first.
DeviceOrder order_of(const Schedule& schedule, const OpGraph& graph, std::size_t num_devices);

}  // namespace baechi
