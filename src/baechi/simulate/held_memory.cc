// SPDX-License-Identifier: Apache-2.0
#include "baechi/simulate/held_memory.h"

#include <algorithm>
#include <optional>
#include <utility>

namespace baechi {
namespace {

// From when until when a device holds something.
struct Lifetime {
  Time start = {}, end = {};
  bool always = false;

  bool contains(Time moment) const {
    return always || (start <= moment && (moment < end || (start == end && end == moment)));
  }
};

class Inventory {
 public:
  Inventory(const OpGraph& graph, const Schedule& schedule, const IdVector<DeviceId, Time>& moments)
      : graph_(graph), schedule_(schedule), moments_(moments), held_(moments.size()) {}

  IdVector<DeviceId, std::vector<HeldMemory>> take() {
    std::size_t next = 0;  // transfers are sorted by tensor, and tensors by their producer
    for (const OpId op : graph_.ops()) {
      const OpSlot& slot = schedule_.slots[op];
      hold(slot.device, {.always = true}, op, MemoryUse::kPermanent, graph_[op].permanent);
      hold(slot.device, {slot.start, slot.end}, op, MemoryUse::kTemporary, graph_[op].temporary);
      for (const TensorId tensor : graph_.outputs(op)) hold_tensor(tensor, op, next);
    }
    return std::move(held_);
  }

 private:
  void hold(DeviceId device, const Lifetime& lifetime, OpId op, MemoryUse use, Bytes bytes) {
    if (bytes > Bytes(0) && lifetime.contains(moments_[device]))
      held_[device].push_back({op, use, bytes});
  }

  void hold_tensor(TensorId tensor, OpId producer, std::size_t& next) {
    const OpSlot& home = schedule_.slots[producer];
    const bool kept = graph_.retains_outputs(producer) || graph_.consumers(tensor).empty();
    Time end = last_reader(tensor, home.device).value_or(home.end);
    for (; next < schedule_.transfers.size() && schedule_.transfers[next].tensor == tensor;
         ++next) {
      const Transfer& sent = schedule_.transfers[next];
      end = std::max(end, sent.end);
      const Time over = kept ? schedule_.makespan : last_reader(tensor, sent.to).value_or(sent.end);
      hold(sent.to, {sent.start, over}, producer, MemoryUse::kCopy, graph_.size(tensor));
    }
    hold(home.device, {home.start, kept ? schedule_.makespan : end}, producer, MemoryUse::kOutput,
         graph_.home_size(tensor));
  }

  std::optional<Time> last_reader(TensorId tensor, DeviceId device) const {
    return last_local_use(graph_, schedule_, tensor, device);
  }

  const OpGraph& graph_;
  const Schedule& schedule_;
  const IdVector<DeviceId, Time>& moments_;
  IdVector<DeviceId, std::vector<HeldMemory>> held_;
};

}  // namespace

std::optional<Time> last_local_use(const OpGraph& graph, const Schedule& schedule, TensorId tensor,
                                   DeviceId device) {
  std::optional<Time> last;
  for (const Edge& edge : graph.consumers(tensor)) {
    const OpSlot& reader = schedule.slots[edge.to];
    if (reader.device == device) last = std::max(last.value_or(reader.end), reader.end);
  }
  return last;
}

IdVector<DeviceId, std::vector<HeldMemory>> held_memory(const OpGraph& graph,
                                                        const Schedule& schedule,
                                                        const IdVector<DeviceId, Time>& moments) {
  return Inventory(graph, schedule, moments).take();
}

}  // namespace baechi
