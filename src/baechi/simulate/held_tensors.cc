// SPDX-License-Identifier: Apache-2.0
#include "baechi/simulate/held_tensors.h"

#include <algorithm>

namespace baechi::simulation {
namespace {

constexpr auto kLater = [](const TransferEnds::End& a, const TransferEnds::End& b) {
  return a.at > b.at;
};

}  // namespace

void TransferEnds::clear() {
  in_order_.clear();
  next_ = 0;
  out_of_order_.clear();
}

void TransferEnds::push(End end) {
  if (next_ == in_order_.size() || end.at >= in_order_.back().at) {
    in_order_.push_back(end);
  } else {
    out_of_order_.push_back(end);
    std::push_heap(out_of_order_.begin(), out_of_order_.end(), kLater);
  }
}

const TransferEnds::End* TransferEnds::first() const {
  const End* in_order = next_ < in_order_.size() ? &in_order_[next_] : nullptr;
  if (out_of_order_.empty()) return in_order;
  const End* out_of_order = &out_of_order_.front();
  return in_order == nullptr || out_of_order->at < in_order->at ? out_of_order : in_order;
}

void TransferEnds::pop() {
  if (out_of_order_.empty() || first() != &out_of_order_.front()) {
    ++next_;
    return;
  }
  std::pop_heap(out_of_order_.begin(), out_of_order_.end(), kLater);
  out_of_order_.pop_back();
}

HeldTensors::HeldTensors(const CostModel& costs, CopyTable& copies)
    : graph_(&costs.graph()),
      cluster_(&costs.cluster()),
      copies_(&copies),
      memory_(graph_->num_ops()),
      readers_(graph_->num_tensors()),
      devices_(cluster_->num_devices()) {
  for (const OpId op : graph_->ops()) {
    const Operator& o = (*graph_)[op];
    OpMemory& memory = memory_[op];
    memory.permanent = o.permanent;
    memory.temporary = o.temporary;
    memory.keeps_outputs = graph_->memory_mode() == MemoryMode::kRetain && !o.backward;
    for (const TensorId tensor : graph_->outputs(op)) {
      const bool kept = memory.keeps_outputs || graph_->consumers(tensor).empty();
      (kept ? memory.kept : memory.passing) += graph_->size(tensor);
    }
  }
}

void HeldTensors::clear(const Placement& placement, const IdVector<OpId, OpSlot>& slots,
                        bool record) {
  placement_ = &placement;
  slots_ = &slots;
  overflowed_ = false;
  permanent_.assign(devices_.size(), Bytes(0));
  for (const OpId op : memory_.keys()) permanent_[placement[op]] += memory_[op].permanent;
  for (const DeviceId device : devices_.keys()) {
    HoldingDevice& holding = devices_[device];
    holding.account.clear(permanent_[device], (*cluster_)[device].capacity, record);
    holding.arrivals.clear();
    holding.next_arrival = 0;
    holding.transfer_ends.clear();
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
    account.run(std::nullopt);
  }
  account.give_back(memory.temporary, slot.start);
  overflowed_ = overflowed_ || account.overflowed();
  read_inputs(account, op, slot.device);
}

void HeldTensors::read_inputs(MemoryAccount& account, OpId op, DeviceId device) {
  for (const Edge& edge : graph_->in_edges(op)) {
    if (!edge.tensor.has_value()) continue;
    const TensorId tensor = *edge.tensor;
    if ((*placement_)[edge.from] == device) {
      if (--readers_[tensor] == 0)
        account.give_back(graph_->size(tensor), (*slots_)[edge.from].start);
    } else {
      TensorCopy& copy = copies_->find(tensor, device);
      if (--copy.readers == 0) account.give_back(graph_->size(tensor), copy.start);
    }
  }
}

void HeldTensors::sent(TensorId tensor, DeviceId device, std::uint32_t local_readers) {
  const bool kept = keeps_outputs(graph_->producer(tensor));
  const std::span<const TensorCopy> copies = copies_->copies(tensor);
  readers_[tensor] = local_readers + (kept || !copies.empty() ? 1 : 0);
  Time last_end;
  for (const TensorCopy& copy : copies) {
    devices_[copy.to].arrivals.push_back({copy.start, graph_->size(tensor), kept});
    last_end = std::max(last_end, copy.end);
  }
  if (!kept && !copies.empty()) devices_[device].transfer_ends.push({last_end, tensor});
}

void HeldTensors::end_step(Time makespan) {
  for (HoldingDevice& device : devices_) {
    advance(device, makespan);
    device.account.end_step(makespan);
    overflowed_ = overflowed_ || device.account.overflowed();
  }
}

// Takes and gives back what starts and ends on the device's links up to and including `until`.
void HeldTensors::advance(HoldingDevice& device, Time until) {
  MemoryAccount& account = device.account;
  while (true) {
    const TransferEnds::End* end = device.transfer_ends.first();
    const Arrival* arrival = device.next_arrival < device.arrivals.size()
                                 ? &device.arrivals[device.next_arrival]
                                 : nullptr;
    if (arrival != nullptr && arrival->at <= until && (end == nullptr || arrival->at <= end->at)) {
      account.enter(arrival->at);
      if (arrival->kept)
        account.keep(arrival->bytes);
      else
        account.take(arrival->bytes);
      ++device.next_arrival;
    } else if (end != nullptr && end->at <= until) {
      account.enter(end->at);
      if (--readers_[end->tensor] == 0)
        account.give_back(graph_->size(end->tensor),
                          (*slots_)[graph_->producer(end->tensor)].start);
      device.transfer_ends.pop();
    } else {
      return;
    }
  }
}

}  // namespace baechi::simulation
