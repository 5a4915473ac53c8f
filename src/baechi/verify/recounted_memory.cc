// SPDX-License-Identifier: Apache-2.0
// Most memory changes hands when an operator starts or ends, and a device's operators are sorted by
// both at once, so they are added up per operator. Only what hangs on transfers needs sorting.
#include "baechi/verify/recounted_memory.h"

#include <algorithm>
#include <optional>

namespace baechi {
namespace {

struct Change {
  Time at;
  Bytes bytes;
};

struct DeviceChanges {
  std::vector<Change> taken;     // by received copies
  std::vector<Change> released;  // by transfers that outlive the last local consumer
  std::vector<Change> spikes;    // intervals of no length: there at that moment only
  Bytes kept;                    // released at the end of the step
  Bytes permanent;
};

class Account {
 public:
  Account(const OpGraph& graph, const Schedule& schedule, std::size_t num_devices)
      : graph_(graph),
        schedule_(schedule),
        devices_(num_devices),
        taken_(graph.num_ops()),
        released_(graph.num_ops()),
        last_reader_(num_devices),
        reader_of_(num_devices) {}

  IdVector<DeviceId, HeldMost> peaks(const DeviceOrder& order) {
    add_operators();
    add_tensors();
    IdVector<DeviceId, HeldMost> result(devices_.size());
    for (const DeviceId device : devices_.keys()) result[device] = sweep(device, order[device]);
    return result;
  }

 private:
  void add_operators() {
    for (const OpId op : graph_.ops()) {
      const OpSlot& slot = schedule_.slots[op];
      if (graph_[op].variable) {
        for (const TensorId tensor : graph_.outputs(op))
          devices_[slot.device].permanent += graph_.size(tensor);
        continue;
      }
      devices_[slot.device].permanent += graph_[op].permanent;
      const Bytes temporary = graph_[op].temporary;
      if (temporary == Bytes(0)) continue;
      if (slot.start == slot.end) {
        devices_[slot.device].spikes.push_back({slot.start, temporary});
      } else {
        taken_[op] += temporary;
        released_[op] += temporary;
      }
    }
  }

  // Transfers are sorted by tensor, and so are the tensors: one walk along both.
  void add_tensors() {
    auto transfer = schedule_.transfers.begin();
    for (const TensorId tensor : graph_.tensors()) {
      const auto first = transfer;
      while (transfer != schedule_.transfers.end() && transfer->tensor == tensor) ++transfer;
      if (graph_.size(tensor) == Bytes(0)) continue;
      find_last_readers(tensor);
      if (!graph_[graph_.producer(tensor)].variable) add_original(tensor, {first, transfer});
      for (auto copy = first; copy != transfer; ++copy) add_copy(*copy);
    }
  }

  // The consumer that ends last on every device that has one.
  void find_last_readers(TensorId tensor) {
    for (const Edge& edge : graph_.consumers(tensor)) {
      const OpSlot& slot = schedule_.slots[edge.to];
      std::optional<OpId>& last = last_reader_[slot.device];
      if (reader_of_[slot.device] != tensor) last.reset();
      reader_of_[slot.device] = tensor;
      if (!last.has_value() || schedule_.slots[*last].end < slot.end) last = edge.to;
    }
  }
  std::optional<OpId> last_reader(TensorId tensor, DeviceId device) const {
    return reader_of_[device] == tensor ? last_reader_[device] : std::nullopt;
  }

  bool kept(TensorId tensor) const {
    const Operator& producer = graph_[graph_.producer(tensor)];
    return graph_.consumers(tensor).empty() || (graph_.memory_mode() == MemoryMode::kRetain &&
                                                !producer.backward && !producer.variable);
  }

  void add_original(TensorId tensor, std::span<const Transfer> transfers) {
    const OpId producer = graph_.producer(tensor);
    const OpSlot& slot = schedule_.slots[producer];
    DeviceChanges& device = devices_[slot.device];
    const Bytes size = graph_.size(tensor);
    const std::optional<OpId> reader = last_reader(tensor, slot.device);
    Time end = slot.end;
    if (reader.has_value()) end = std::max(end, schedule_.slots[*reader].end);
    const bool read_last = reader.has_value() && schedule_.slots[*reader].end == end;
    bool sent_last = false;
    for (const Transfer& transfer : transfers) {
      sent_last = sent_last || transfer.end > end;
      end = std::max(end, transfer.end);
    }
    if (kept(tensor)) end = schedule_.makespan;

    if (end == slot.start) {
      device.spikes.push_back({end, size});
      return;
    }
    taken_[producer] += size;
    if (kept(tensor))
      device.kept += size;
    else if (read_last && !sent_last)
      released_[*reader] += size;
    else
      device.released.push_back({end, size});
  }

  void add_copy(const Transfer& transfer) {
    DeviceChanges& device = devices_[transfer.to];
    const Bytes size = graph_.size(transfer.tensor);
    const OpId reader = *last_reader(transfer.tensor, transfer.to);
    const bool is_kept = kept(transfer.tensor);
    const Time end = is_kept ? schedule_.makespan : schedule_.slots[reader].end;
    if (end == transfer.start) {
      device.spikes.push_back({end, size});
      return;
    }
    device.taken.push_back({transfer.start, size});
    if (is_kept)
      device.kept += size;
    else
      released_[reader] += size;
  }

  // Memory grows only when something begins, so only those moments are looked at: what ended until
  // then is released, what begins then is taken.
  HeldMost sweep(DeviceId id, const std::vector<OpId>& order) {
    DeviceChanges& device = devices_[id];
    for (std::vector<Change>* changes : {&device.taken, &device.released, &device.spikes})
      std::sort(changes->begin(), changes->end(),
                [](const Change& a, const Change& b) { return a.at < b.at; });
    Bytes held = device.permanent;
    HeldMost most{held, Time(0)};
    auto started = order.begin(), ended = order.begin();
    auto taken = device.taken.begin(), released = device.released.begin();
    auto spike = device.spikes.begin();
    while (true) {
      std::optional<Time> now;
      const auto consider = [&](Time at) { now = std::min(now.value_or(at), at); };
      if (started != order.end()) consider(schedule_.slots[*started].start);
      if (taken != device.taken.end()) consider(taken->at);
      if (spike != device.spikes.end()) consider(spike->at);
      if (!now.has_value()) return most;

      for (; ended != order.end() && schedule_.slots[*ended].end <= *now; ++ended)
        held -= released_[*ended];
      for (; released != device.released.end() && released->at <= *now; ++released)
        held -= released->bytes;
      if (*now == schedule_.makespan) {
        held -= device.kept;
        device.kept = Bytes(0);
      }
      for (; started != order.end() && schedule_.slots[*started].start == *now; ++started)
        held += taken_[*started];
      for (; taken != device.taken.end() && taken->at == *now; ++taken) held += taken->bytes;
      Bytes with_spikes = held;
      for (; spike != device.spikes.end() && spike->at == *now; ++spike)
        with_spikes += spike->bytes;
      if (with_spikes > most.bytes) most = {with_spikes, *now};
    }
  }

  const OpGraph& graph_;
  const Schedule& schedule_;
  IdVector<DeviceId, DeviceChanges> devices_;
  IdVector<OpId, Bytes> taken_, released_;  // by the operator whose start or end it hangs on
  // The last reader of the tensor in reader_of_, per device: no clearing between tensors.
  IdVector<DeviceId, std::optional<OpId>> last_reader_;
  IdVector<DeviceId, std::optional<TensorId>> reader_of_;
};

}  // namespace

IdVector<DeviceId, HeldMost> peaks(const OpGraph& graph, const Schedule& schedule,
                                   const DeviceOrder& order) {
  return Account(graph, schedule, order.size()).peaks(order);
}

}  // namespace baechi
