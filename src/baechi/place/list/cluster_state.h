// SPDX-License-Identifier: Apache-2.0
// The simulated devices a list scheduler fills (Paper 4.2): when each is free, what waits in its
// transfer queues, which tensors it has received, what it holds.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

#include "baechi/base/id.h"
#include "baechi/base/units.h"
#include "baechi/cluster/transfer_queues.h"
#include "baechi/cost/cost_model.h"
#include "baechi/place/allowed_devices.h"
#include "baechi/place/list/believed_memory.h"
#include "baechi/place/list/transfer_times.h"
#include "baechi/place/placer.h"
#include "baechi/schedule/schedule.h"

namespace baechi {

// When the inputs of an operator can be on a device, as far as what is placed tells.
struct Arrival {
  Time ready;
  Time load;  // what sending the missing inputs takes; 0 when transfers never wait
  // Where `load` queues up: ready >= queue_end(queue) + load. The operator's only source, or the
  // receiving device itself when there are several. Absent when nothing has to queue.
  std::optional<DeviceId> queue;
  bool one_source = false;
};

// The same on any device of a class that holds none of the inputs: there they can be at `ready`, and
// not before `load` after the end of the device's incoming queue.
struct CommonArrival {
  Time ready, load;
  std::optional<DeviceId> source;  // the only one
};

// Paper eq. (1): an operator's earliest schedulable time on device p is
//
//   max(free(p), max over parents i of  end(i) + c_ip)      c_ip = 0 on the parent's own device
//
// A tensor that p has received already counts from its arrival. With sequential or duplex
// communication the transfers also wait in queues: one that an operator would add to a queue can
// not start before the transfers that are in it now, so for every queue q on the way of its inputs
//
//   ready >= end(q) + sum of the c_ip of its inputs that pass q.
//
// None of these terms ever falls when further operators are placed: a tensor that someone else
// fetches in the meantime leaves the sum and moves the queue's end.
class ClusterState {
 public:
  ClusterState(const CostModel& costs, const AllowedDevices& allowed, const PlaceOptions& options);

  const CostModel& costs() const { return costs_; }
  std::size_t num_devices() const { return free_.size(); }
  Time free(DeviceId device) const { return free_[device]; }
  bool placed(OpId op) const { return slots_[op].placed; }
  std::optional<GroupId> group(OpId op) const { return slots_[op].group; }
  // It has not been placed, and nothing has decided for another device.
  bool open_to(OpId op, DeviceId device) const {
    const Slot& slot = slots_[op];
    return !slot.placed && slot.decided.value_or(device) == device;
  }
  DeviceId device(OpId op) const { return slots_[op].device; }  // requires placed
  Time end(OpId op) const { return slots_[op].end; }            // requires placed
  std::size_t num_placed() const { return num_placed_; }
  Time makespan() const;

  // The only device left for `op`: where its group is, its pin, what designate() said.
  std::optional<DeviceId> decided(OpId op) const { return slots_[op].decided; }
  // Sends `op` to a device that it may go to, until undesignate() or its group is decided.
  void designate(OpId op, DeviceId device) {
    slots_[op].decided = device;
    use(device);
  }
  // False when `op` never had another choice than its decided device.
  bool undesignate(OpId op);
  // It would be the first of its colocation group.
  bool opens_group(OpId op) const {
    const auto group = slots_[op].group;
    return group && !group_device_[*group].has_value();
  }
  bool may_go(OpId op, DeviceId device) const {
    return allowed_(op, device) && decided(op).value_or(device) == device;
  }

  // Final once all parents are placed; those that are not do not count.
  Arrival arrival(OpId op, DeviceId device) const;
  // Requires two devices of the class (device_classes.h), inputs to send, and no shared channels.
  CommonArrival common_arrival(OpId op, DeviceId one, DeviceId other) const;
  // Where a tensor was sent, if someone asks for copies.
  template <class Visit>
  void for_each_copy(TensorId tensor, const Visit& visit) const {
    if (!keep_copies_) return;
    for (std::optional<std::uint32_t> at = first_copy_[tensor]; at; at = copies_[*at].next)
      visit(copies_[*at].device);
  }
  // As arrival() without any queue, on a device that holds none of the inputs.
  Time undisturbed_arrival(OpId op, DeviceId device) const;
  Time earliest_start(OpId op, DeviceId device) const {
    return std::max(free_[device], arrival(op, device).ready);
  }
  // The operator does not start before `time`: it waits for memory.
  void delay(OpId op, Time time);
  bool queues_matter() const { return queues_.size() > 0; }
  // The end of the queues between two devices, or of the incoming one when they are the same.
  Time queue_end(DeviceId from, DeviceId to) const {
    return from == to ? queues_.free(queues_.receiving(to)) : queues_.free(from, to);
  }
  Time sending_end(DeviceId from) const { return queues_.free(queues_.sending(from)); }
  const TransferTimes& transfer_times() const { return transfer_times_; }

  // Memory, at the time of the decision. `overrun` is not positive when the operator fits.
  bool memory_is_ample() const { return memory_.ample(); }
  void advance_memory(DeviceId device, Time now) { memory_.advance(device, now); }
  const BelievedMemory& memory() const { return memory_; }
  Bytes overrun(OpId op, DeviceId device) const;
  bool fits(OpId op, DeviceId device) {
    if (memory_.ample()) return true;
    memory_.advance(device, earliest_start(op, device));
    return overrun(op, device) <= Bytes(0);
  }

  // Sends what is missing, in the order the transfers are requested, and runs the operator.
  void place(OpId op, DeviceId device);
  // Devices that stand for equal ones which this cluster does not have (NeededDevices).
  void set_stand_ins(const std::vector<DeviceId>& stand_ins);
  // Something is to run on the device: it is no longer like those that are idle.
  void use(DeviceId device) {
    if (!stands_in_.empty() && stands_in_[device]) used_stand_in_ = true;
  }
  bool used_stand_in() const { return used_stand_in_; }

  // What the last place() sent.
  const std::vector<TensorId>& sent() const { return sent_; }

  // Requires every operator placed. Devices work in the order of the decisions.
  PlacedGraph take_plan();

 private:
  struct Slot {  // what decisions ask of an operator, side by side
    Time end;
    DeviceId device{0};
    bool placed = false;
    std::optional<DeviceId> decided;
    std::optional<GroupId> group;
  };
  struct Copy {  // of a tensor on a device that is not its producer's
    Time arrival, last_use;
    DeviceId device;
    std::optional<std::uint32_t> next;  // of the same tensor
  };
  struct Remote {  // an input that would have to be sent
    Time requested, takes;
    TensorId tensor;
    DeviceId from;
  };
  struct TensorUse {
    Time last_use;  // on its producer's device: local consumers and outgoing transfers
    std::uint32_t consumers_left = 0;
  };

  const Copy* find_copy(TensorId tensor, DeviceId device) const;
  // When its inputs can be there if nothing queues. Lists those that have to be sent in remotes_,
  // if it is to look for copies.
  Time collect_inputs(OpId op, DeviceId device, bool copies) const;
  void bound_by_queues(Arrival& arrival, DeviceId device) const;
  void send(const Remote& remote, DeviceId to);
  void use_inputs(OpId op, DeviceId device, Time end);
  void release(TensorId tensor);

  const CostModel& costs_;
  const OpGraph& graph_;
  const AllowedDevices& allowed_;
  TransferTimes transfer_times_;
  BelievedMemory memory_;
  TransferQueues queues_;
  bool keep_copies_;  // someone asks for them: queues or memory
  std::size_t num_placed_ = 0;
  IdVector<DeviceId, bool> stands_in_;  // empty: none does
  bool used_stand_in_ = false;

  IdVector<OpId, Slot> slots_;
  IdVector<OpId, Time> delays_;  // empty until the first
  IdVector<GroupId, std::optional<DeviceId>> group_device_;
  IdVector<DeviceId, Time> free_;
  std::vector<Copy> copies_;
  IdVector<TensorId, std::optional<std::uint32_t>> first_copy_;
  IdVector<TensorId, TensorUse> uses_;
  DeviceOrder order_;
  std::vector<TensorId> sent_;

  mutable std::vector<Remote> remotes_;   // scratch of arrival() and place()
  mutable std::vector<Time> queue_load_;  // scratch: zero between calls
  mutable std::vector<std::size_t> loaded_queues_;
};

}  // namespace baechi
