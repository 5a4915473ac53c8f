// SPDX-License-Identifier: Apache-2.0
// The event loop of the Execution Simulator (Paper 4.2).
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "baechi/base/cancel.h"
#include "baechi/base/id.h"
#include "baechi/base/units.h"
#include "baechi/cluster/transfer_queues.h"
#include "baechi/cost/cost_model.h"
#include "baechi/schedule/schedule.h"
#include "baechi/simulate/event_tree.h"
#include "baechi/simulate/held_tensors.h"
#include "baechi/simulate/link_clocks.h"
#include "baechi/simulate/replay_graph.h"
#include "baechi/simulate/sorted_lane.h"
#include "baechi/simulate/trace.h"

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

  // The makespan.
  Time run(const PlacedGraph& placed, const Options& options);

  // Of the last run.
  void tell(IdVector<OpId, OpSlot>& slots) const;
  // Of the last run, with memory.
  Bytes peak(DeviceId device) const { return held_.account(device).peak(); }
  DeviceTrace device_trace(DeviceId device) const;
  // Of the last run, sorted by (tensor, to).
  std::vector<Transfer> transfers() const;
  // Empty on clusters without a host time.
  const IdVector<OpId, Time>& asked() const { return asked_; }

 private:
  struct Node {
    // When the last of what it waits for is there, as far as known; once it is started, when that
    // is.
    Instant ready;
    Time duration;
    std::uint32_t waits_for;  // edges whose producers have not finished
    DeviceId device{0};
  };
  struct Worker {  // a device at work
    Instant free;  // of operators, and of sends that block
    bool busy = false;
    const OpId *next = nullptr, *last = nullptr;  // with an order: what is left of it
    // Without: what may start, and when it may. First what could when its last producer finished,
    // then what waited, or still waits, for a transfer: both are nearly in order.
    SortedLane<Event> startable, startable_later;
    Time computing;
    Bytes sent, received;
  };

  Time run_once(const PlacedGraph& placed, const Options& options);
  Time run_as_asked(const PlacedGraph& placed, const Options& options);
  Time replay(const CancelFlag* cancel);
  void prepare(const PlacedGraph& placed);
  void take_order(const DeviceOrder& order);
  void skip_variables(Worker& worker) const;
  void provide(OpId variable);
  void finish(OpId op, Instant now);
  void send(TensorId tensor, const OpSlot& producer, Instant now);
  void transfer(TensorId tensor, DeviceId from, Instant now);
  Time next_ask(OpId producer);
  void arrive(OpId op, Instant at);
  void become_startable(OpId op);
  void release(DeviceId device);
  static const Event* first_startable(const Worker& worker);
  void await_choice(DeviceId device);
  void choose(DeviceId device, Instant now);
  void start(OpId op, DeviceId device, Instant at);
  Time takes_in(OpId op, DeviceId device);
  Time gives_away(OpId op, DeviceId device);

  const CostModel* costs_;
  const OpGraph* graph_;
  ReplayGraph edges_;
  std::vector<TensorCopy> copies_;  // those of one tensor together, by device
  HeldTensors held_;
  LinkClocks clocks_;
  TransferQueues queues_;
  EventTree events_;

  const PlacedGraph* placed_ = nullptr;
  bool memory_ = true;
  bool sends_block_;
  Instant now_;  // the last finish
  std::vector<OpId> variables_;
  IdVector<OpId, Node> nodes_;
  IdVector<DeviceId, Worker> workers_;
  std::vector<bool> listed_;  // by operator: in the given order
  std::vector<bool> taken_;   // by tensor and device, where messages take time: received there
  IdVector<OpId, Time> asked_;
  std::optional<OpId> asks_for_;  // whose transfers are asked for, and when so far
  Time asks_until_;

  struct Destination {  // of the tensor that is being sent
    std::uint32_t readers = 0;
    Instant arrival;
  };
  IdVector<DeviceId, Destination> destinations_;
  std::vector<DeviceId> reached_;
};

}  // namespace baechi::simulation
