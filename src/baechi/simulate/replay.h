// SPDX-License-Identifier: Apache-2.0
// The event loop of the Execution Simulator (Paper 4.2).
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "baechi/base/cancel.h"
#include "baechi/base/id.h"
#include "baechi/base/units.h"
#include "baechi/cost/cost_model.h"
#include "baechi/schedule/schedule.h"
#include "baechi/simulate/copy_table.h"
#include "baechi/simulate/event_tree.h"
#include "baechi/simulate/execution_simulator.h"
#include "baechi/simulate/held_tensors.h"
#include "baechi/simulate/transfer_queues.h"

namespace baechi::simulation {

// The only events are operators that finish (and, without an order, devices that choose). When one
// finishes, its transfers enter their queues at once, and first come, first served then says when
// they will end: so everything an operator waits for is known when its last producer finishes, and
// no transfer ever needs an event of its own.
class Replay {
 public:
  struct Options {
    bool memory = true;  // keep the devices' accounts
    bool record_memory = false;
    const CancelFlag* cancel = nullptr;
  };

  explicit Replay(const CostModel& costs);

  // Fills `slots` and returns the makespan.
  Time run(const PlacedGraph& placed, const Options& options, IdVector<OpId, OpSlot>& slots);

  // Of the last run, with memory.
  Bytes peak(DeviceId device) const { return held_.account(device).peak(); }
  DeviceTrace device_trace(DeviceId device) const;
  // Of the last run, sorted by (tensor, to).
  std::vector<Transfer> transfers() const;

 private:
  struct Node {
    Instant ready;  // when the last of what it waits for is there, as far as known
    Time duration;
    std::uint32_t waits_for;  // edges whose producers have not finished
    DeviceId device{0};
    bool listed = false;  // in the given order
  };
  struct Startable {  // waits for nothing; may start at `ready`
    Instant ready;
    OpId op;
    friend auto operator<=>(const Startable&, const Startable&) = default;
  };
  struct Worker {  // a device at work
    Instant free;
    bool busy = false;
    const OpId *next = nullptr, *last = nullptr;  // with an order: what is left of it
    std::vector<Startable> startable;             // without: a heap, the first to start on top
    Time computing;
    Bytes sent, received;
  };

  void prepare(const PlacedGraph& placed);
  void take_order(const DeviceOrder& order);
  void finish(OpId op, Instant now);
  void send(TensorId tensor, DeviceId from, Instant now);
  void arrive(OpId op, Instant at);
  void become_startable(OpId op);
  void occupy(DeviceId device);
  void await_choice(DeviceId device);
  void choose(DeviceId device, Instant now);
  void start(OpId op, DeviceId device, Instant at);

  const CostModel* costs_;
  const OpGraph* graph_;
  CopyTable copies_;
  HeldTensors held_;
  TransferQueues queues_;
  EventTree events_;

  const PlacedGraph* placed_ = nullptr;
  IdVector<OpId, OpSlot>* slots_ = nullptr;
  bool memory_ = true;
  IdVector<OpId, Node> nodes_;
  IdVector<DeviceId, Worker> workers_;

  struct Destination {  // of the tensor that is being sent
    std::uint32_t readers = 0;
    Instant arrival;
  };
  IdVector<DeviceId, Destination> destinations_;
  std::vector<DeviceId> reached_;
};

}  // namespace baechi::simulation
