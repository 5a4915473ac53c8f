// SPDX-License-Identifier: Apache-2.0
#include "baechi/simulate/held_tensors.h"

#include <algorithm>

namespace baechi::simulation {

HeldTensors::HeldTensors(const CostModel& costs, const ReplayGraph& edges,
                         std::vector<TensorCopy>& copies)
    : graph_(&costs.graph()),
      cluster_(&costs.cluster()),
      edges_(&edges),
      copies_(&copies),
      permanent_(graph_->num_ops()),
      memory_(graph_->num_ops()),
      tensors_(graph_->num_tensors()),
      devices_(cluster_->num_devices()) {
  for (const OpId op : graph_->ops()) {
    permanent_[op] = (*graph_)[op].permanent;
    OpMemory& memory = memory_[op];
    memory.temporary = (*graph_)[op].temporary;
    const bool keeps = keeps_outputs(op);
    for (const TensorId tensor : graph_->outputs(op)) {
      const Bytes size = graph_->home_size(tensor);
      tensors_[tensor].size = graph_->size(tensor);
      tensors_[tensor].at_home = size;
      (keeps || edges.consumers(tensor).empty() ? memory.kept : memory.passing) += size;
    }
  }
}

void HeldTensors::clear(const Placement& placement, bool record) {
  permanent_on_.assign(devices_.size(), Bytes(0));
  for (const OpId op : permanent_.keys()) permanent_on_[placement[op]] += permanent_[op];
  for (const DeviceId device : devices_.keys()) {
    HoldingDevice& holding = devices_[device];
    holding.account.clear(permanent_on_[device], (*cluster_)[device].capacity, record);
    holding.arrivals.clear();
    holding.next_arrival = 0;
    holding.transfer_ends.clear();
    holding.next.reset();
  }
}

void HeldTensors::ran(OpId op, const OpSlot& slot) {
  HoldingDevice& device = devices_[slot.device];
  MemoryAccount& account = device.account;
  const OpMemory& memory = memory_[op];

  advance(device, slot.start);
  account.enter(slot.start);
  account.take(memory.temporary + memory.passing);
  account.keep(memory.kept);
  if (slot.start == slot.end) {
    account.run_at_once(op);
  } else {
    account.run(op);
    advance(device, slot.end);
    account.enter(slot.end);
    account.rest();
  }
  account.give_back(memory.temporary, slot.start);
  read_inputs(account, op, slot.device);
}

void HeldTensors::read_inputs(MemoryAccount& account, OpId op, DeviceId device) {
  for (const TensorId input : edges_->inputs(op)) {
    TensorState& tensor = tensors_[input];
    if (tensor.home == device) {
      release(account, tensor);
      continue;
    }
    TensorCopy& copy = copy_on(device, tensor);
    if (--copy.readers == 0) account.give_back(tensor.size, copy.start);
  }
}

TensorCopy& HeldTensors::copy_on(DeviceId device, const TensorState& tensor) {
  const auto copies = std::span(*copies_).subspan(tensor.first_copy, tensor.num_copies);
  return *std::lower_bound(copies.begin(), copies.end(), device,
                           [](const TensorCopy& copy, DeviceId to) { return copy.to < to; });
}

void HeldTensors::release(MemoryAccount& account, TensorState& tensor) {
  if (--tensor.readers == 0) account.give_back(tensor.at_home, tensor.since);
}

void HeldTensors::sent(const Sent& sent) {
  const std::span<const TensorCopy> copies = std::span(*copies_).subspan(sent.first_copy);
  TensorState& tensor = tensors_[sent.tensor];
  tensor.since = sent.producer.start;
  tensor.home = sent.producer.device;
  tensor.first_copy = static_cast<std::uint32_t>(sent.first_copy);
  tensor.num_copies = static_cast<std::uint32_t>(copies.size());
  tensor.readers = sent.local_readers;

  const bool kept = keeps_outputs(graph_->producer(sent.tensor));
  if (kept || !copies.empty()) ++tensor.readers;
  Time last_end;
  for (const TensorCopy& copy : copies) {
    HoldingDevice& receiver = devices_[copy.to];
    auto at = receiver.arrivals.end();  // behind all but those that are asked for late
    const auto first =
        receiver.arrivals.begin() + static_cast<std::ptrdiff_t>(receiver.next_arrival);
    while (at != first && (at - 1)->at > copy.start) --at;
    receiver.arrivals.insert(at, {copy.start, tensor.size, kept});
    receiver.next = std::min(receiver.next.value_or(copy.start), copy.start);
    last_end = std::max(last_end, copy.end);
  }
  if (kept || copies.empty()) return;
  HoldingDevice& sender = devices_[tensor.home];
  sender.transfer_ends.push({last_end, sent.tensor});
  sender.next = std::min(sender.next.value_or(last_end), last_end);
}

void HeldTensors::end_step(Time makespan) {
  for (HoldingDevice& device : devices_) {
    advance(device, makespan);
    device.account.end_step(makespan);
  }
}

void HeldTensors::find_next(HoldingDevice& device) {
  device.next.reset();
  if (device.next_arrival < device.arrivals.size())
    device.next = device.arrivals[device.next_arrival].at;
  if (const TransferEnd* end = device.transfer_ends.first())
    device.next = std::min(device.next.value_or(end->at), end->at);
}

// What starts and ends on the device's links up to and including `until`.
void HeldTensors::take_and_give_back(HoldingDevice& device, Time until) {
  MemoryAccount& account = device.account;
  for (; device.next.has_value() && *device.next <= until; find_next(device)) {
    account.enter(*device.next);
    for (; device.next_arrival < device.arrivals.size(); ++device.next_arrival) {
      const Arrival& arrival = device.arrivals[device.next_arrival];
      if (arrival.at != *device.next) break;
      if (arrival.kept)
        account.keep(arrival.bytes);
      else
        account.take(arrival.bytes);
    }
    const TransferEnd* end = device.transfer_ends.first();
    for (; end != nullptr && end->at == *device.next; end = device.transfer_ends.first()) {
      release(account, tensors_[end->tensor]);
      device.transfer_ends.pop();
    }
  }
}

}  // namespace baechi::simulation
