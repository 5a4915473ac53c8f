// SPDX-License-Identifier: Apache-2.0
// Which tensors every device holds while a step is replayed: counts the readers that each tensor
// and each copy is held for, and keeps the devices' memory accounts.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "baechi/base/id.h"
#include "baechi/base/units.h"
#include "baechi/cost/cost_model.h"
#include "baechi/schedule/schedule.h"
#include "baechi/simulate/memory_account.h"
#include "baechi/simulate/replay_graph.h"
#include "baechi/simulate/sorted_lane.h"

namespace baechi::simulation {

struct TensorCopy {  // on another device than its producer's
  TensorId tensor;
  DeviceId to;
  Time start, end;        // of its transfer
  std::uint32_t readers;  // consumers on `to` that have not finished, and the step if it keeps it
};

class HeldTensors {
 public:
  // `copies` is the replay's own table, whose `readers` are counted down here.
  HeldTensors(const CostModel& costs, const ReplayGraph& edges, std::vector<TensorCopy>& copies);

  void clear(const Placement& placement, bool record);
  // In the order in which operators finish: first `op` has run, and gives back what it was the last
  // to read; then each of its outputs that has consumers goes out to them.
  void ran(OpId op, const OpSlot& slot);
  struct Sent {
    TensorId tensor;
    OpSlot producer;
    std::uint32_t local_readers;
    std::size_t first_copy;  // its copies are the last ones in the table, from this one on
  };
  void sent(const Sent& sent);
  void end_step(Time makespan);

  const MemoryAccount& account(DeviceId device) const { return devices_[device].account; }
  // Held until the step ends, and so are its copies.
  bool keeps_outputs(OpId op) const { return graph_->retains_outputs(op); }

 private:
  struct OpMemory {  // what `op` takes while it runs, whatever the placement
    Bytes temporary;
    Bytes passing;  // its outputs that end with their last use
    Bytes kept;     // its outputs that end with the step
  };
  struct TensorState {  // on the producer's device
    Bytes size, at_home;
    Time since;
    std::uint32_t readers = 0;
    DeviceId home{0};
    std::uint32_t first_copy = 0, num_copies = 0;
  };
  struct Arrival {  // a copy whose transfer starts
    Time at;
    Bytes bytes;
    bool kept;
  };
  struct TransferEnd {  // the last one of a tensor, which is held until then
    Time at;
    TensorId tensor;
    friend bool operator<(const TransferEnd& a, const TransferEnd& b) { return a.at < b.at; }
    friend bool operator>(const TransferEnd& a, const TransferEnd& b) { return b < a; }
  };
  struct HoldingDevice {
    MemoryAccount account;
    std::vector<Arrival> arrivals;  // in the order of time
    std::size_t next_arrival = 0;
    SortedLane<TransferEnd> transfer_ends;  // in that order wherever a sender has a queue
    std::optional<Time> next;               // the earliest of both
  };

  static void find_next(HoldingDevice& device);
  void advance(HoldingDevice& device, Time until) {
    if (device.next.has_value() && *device.next <= until) take_and_give_back(device, until);
  }
  void take_and_give_back(HoldingDevice& device, Time until);
  void read_inputs(MemoryAccount& account, OpId op, DeviceId device);
  static void release(MemoryAccount& account, TensorState& tensor);
  TensorCopy& copy_on(DeviceId device, const TensorState& tensor);

  const OpGraph* graph_;
  const Cluster* cluster_;
  const ReplayGraph* edges_;
  std::vector<TensorCopy>* copies_;
  IdVector<OpId, Bytes> permanent_;
  IdVector<OpId, OpMemory> memory_;
  IdVector<TensorId, TensorState> tensors_;
  IdVector<DeviceId, HoldingDevice> devices_;
  IdVector<DeviceId, Bytes> permanent_on_;
};

}  // namespace baechi::simulation
