// SPDX-License-Identifier: Apache-2.0
// Which tensors every device holds while a step is replayed: counts the readers that each tensor
// and each copy is held for, and keeps the devices' memory accounts.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "baechi/base/id.h"
#include "baechi/base/units.h"
#include "baechi/cost/cost_model.h"
#include "baechi/schedule/schedule.h"
#include "baechi/simulate/copy_table.h"
#include "baechi/simulate/memory_account.h"

namespace baechi::simulation {

// Tensors that are held for a transfer, by the time at which it ends. Mostly they come in that
// order, and always where a sender has a queue; the few others go through a heap.
class TransferEnds {
 public:
  struct End {
    Time at;
    TensorId tensor;
  };

  void clear();
  void push(End end);
  const End* first() const;  // nullptr when there is none
  void pop();

 private:
  std::vector<End> in_order_;
  std::size_t next_ = 0;
  std::vector<End> out_of_order_;
};

class HeldTensors {
 public:
  // `copies` is the replay's own table, whose `readers` are counted down here.
  HeldTensors(const CostModel& costs, CopyTable& copies);

  // The placement and the slots of the replay outlive it.
  void clear(const Placement& placement, const IdVector<OpId, OpSlot>& slots, bool record);
  // In the order in which operators finish: first `op` has run, and gives back what it was the last
  // to read; then each of its outputs that has consumers goes out to the copies in the table.
  void ran(OpId op, const OpSlot& slot);
  void sent(TensorId tensor, DeviceId device, std::uint32_t local_readers);
  void end_step(Time makespan);

  bool overflowed() const { return overflowed_; }  // some device, as far as its account goes
  const MemoryAccount& account(DeviceId device) const { return devices_[device].account; }
  // Held until the step ends, and so are its copies.
  bool keeps_outputs(OpId op) const { return memory_[op].keeps_outputs; }

 private:
  struct OpMemory {  // what `op` takes, whatever the placement
    Bytes permanent, temporary;
    Bytes passing, kept;  // outputs that end with their last use; with the step
    bool keeps_outputs = false;
  };
  struct Arrival {  // a copy whose transfer starts
    Time at;
    Bytes bytes;
    bool kept;
  };
  struct HoldingDevice {
    MemoryAccount account;
    std::vector<Arrival> arrivals;  // in the order of time
    std::size_t next_arrival = 0;
    TransferEnds transfer_ends;
  };

  void advance(HoldingDevice& device, Time until);
  void read_inputs(MemoryAccount& account, OpId op, DeviceId device);

  const OpGraph* graph_;
  const Cluster* cluster_;
  CopyTable* copies_;
  const Placement* placement_ = nullptr;
  const IdVector<OpId, OpSlot>* slots_ = nullptr;
  IdVector<OpId, OpMemory> memory_;
  IdVector<TensorId, std::uint32_t> readers_;  // on the producer's device
  IdVector<DeviceId, HoldingDevice> devices_;
  IdVector<DeviceId, Bytes> permanent_;
  bool overflowed_ = false;
};

}  // namespace baechi::simulation
