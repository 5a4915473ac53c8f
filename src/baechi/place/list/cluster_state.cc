// SPDX-License-Identifier: Apache-2.0
#include "baechi/place/list/cluster_state.h"

#include <tuple>
#include <utility>

#include "baechi/base/assert.h"

namespace baechi {

ClusterState::ClusterState(const CostModel& costs, const AllowedDevices& allowed,
                           const PlaceOptions& options)
    : costs_(costs),
      graph_(costs.graph()),
      allowed_(allowed),
      transfer_times_(costs),
      memory_(costs, options.memory, options.headroom),
      queues_(costs.cluster()),
      keep_copies_(queues_matter() || !memory_.ample()),
      slots_(graph_.num_ops()),
      group_device_(graph_.num_groups()),
      free_(costs.cluster().num_devices()),
      order_(costs.cluster().num_devices()),
      queue_load_(queues_.size()) {
  for (const OpId op : graph_.ops()) {
    slots_[op].decided = costs.pin(op);
    if (!slots_[op].decided && options.home != nullptr && allowed(op, (*options.home)[op]))
      designate(op, (*options.home)[op]);
    slots_[op].group = graph_[op].group;
  }
  if (keep_copies_) first_copy_.resize(graph_.num_tensors());
  if (memory_.ample()) return;
  uses_.resize(graph_.num_tensors());
  for (const TensorId tensor : graph_.tensors())
    uses_[tensor].consumers_left = static_cast<std::uint32_t>(graph_.consumers(tensor).size());
}

void ClusterState::set_stand_ins(const std::vector<DeviceId>& stand_ins) {
  stands_in_.assign(stand_ins.empty() ? 0 : num_devices(), false);
  for (const DeviceId device : stand_ins) stands_in_[device] = true;
}

Time ClusterState::makespan() const {
  Time last;
  for (const Time time : free_) last = std::max(last, time);
  return last;
}

bool ClusterState::undesignate(OpId op) {
  Slot& slot = slots_[op];
  if (!slot.decided || costs_.pin(op) || (slot.group && group_device_[*slot.group])) return false;
  slot.decided.reset();
  return true;
}

const ClusterState::Copy* ClusterState::find_copy(TensorId tensor, DeviceId device) const {
  for (std::optional<std::uint32_t> at = first_copy_[tensor]; at; at = copies_[*at].next)
    if (copies_[*at].device == device) return &copies_[*at];
  return nullptr;
}

Time ClusterState::collect_inputs(OpId op, DeviceId device, bool copies) const {
  Time ready = delays_.empty() ? Time(0) : delays_[op];
  remotes_.clear();
  for (const Edge& edge : graph_.in_edges(op)) {
    const Slot& parent = slots_[edge.from];
    if (!parent.placed) continue;
    Time at = parent.end;
    if (parent.device != device && edge.tensor.has_value()) {
      const Copy* copy = copies ? find_copy(*edge.tensor, device) : nullptr;
      if (copy != nullptr) {
        at = copy->arrival;
      } else {
        const Time takes = transfer_times_(*edge.tensor, parent.device, device);
        if (copies) remotes_.push_back({at, takes, *edge.tensor, parent.device});
        at += takes;
      }
    }
    ready = std::max(ready, at);
  }
  return ready;
}

Arrival ClusterState::arrival(OpId op, DeviceId device) const {
  Arrival arrival;
  arrival.ready = collect_inputs(op, device, queues_matter());
  if (!remotes_.empty()) bound_by_queues(arrival, device);
  return arrival;
}

void ClusterState::bound_by_queues(Arrival& arrival, DeviceId device) const {
  const DeviceId source = remotes_.front().from;
  arrival.one_source = true;
  for (const Remote& remote : remotes_) {
    arrival.load += remote.takes;
    arrival.one_source = arrival.one_source && remote.from == source;
  }
  arrival.queue = arrival.one_source ? source : device;
  arrival.ready = std::max(arrival.ready, queue_end(*arrival.queue, device) + arrival.load);
  if (arrival.one_source) return;

  for (const Remote& remote : remotes_)
    queues_.for_each(remote.from, device, [&](std::size_t queue) {
      queue_load_[queue] += remote.takes;
      loaded_queues_.push_back(queue);
    });
  for (const std::size_t queue : loaded_queues_) {
    if (queue_load_[queue] > Time(0))
      arrival.ready = std::max(arrival.ready, queues_.free(queue) + queue_load_[queue]);
    queue_load_[queue] = Time(0);
  }
  loaded_queues_.clear();
}

CommonArrival ClusterState::common_arrival(OpId op, DeviceId one, DeviceId other) const {
  CommonArrival common;
  common.ready = delays_.empty() ? Time(0) : delays_[op];
  bool one_source = true;
  std::optional<DeviceId> last;
  for (const Edge& edge : graph_.in_edges(op)) {
    const Slot& parent = slots_[edge.from];
    if (!parent.placed) continue;
    Time at = parent.end;
    if (edge.tensor.has_value()) {
      const Time takes =
          transfer_times_(*edge.tensor, parent.device, parent.device == one ? other : one);
      at += takes;
      common.load += takes;
      queue_load_[queues_.sending(parent.device)] += takes;
      loaded_queues_.push_back(queues_.sending(parent.device));
      one_source = one_source && last.value_or(parent.device) == parent.device;
      last = parent.device;
    }
    common.ready = std::max(common.ready, at);
  }
  if (one_source) common.source = last;
  for (const std::size_t queue : loaded_queues_) {
    if (one_source || queue_load_[queue] > Time(0))
      common.ready = std::max(common.ready, queues_.free(queue) + queue_load_[queue]);
    queue_load_[queue] = Time(0);
  }
  loaded_queues_.clear();
  return common;
}

Time ClusterState::undisturbed_arrival(OpId op, DeviceId device) const {
  Time ready = delays_.empty() ? Time(0) : delays_[op];
  for (const Edge& edge : graph_.in_edges(op)) {
    const Slot& parent = slots_[edge.from];
    Time at = parent.end;
    if (edge.tensor.has_value() && parent.device != device)
      at += transfer_times_(*edge.tensor, parent.device, device);
    ready = std::max(ready, at);
  }
  return ready;
}

void ClusterState::delay(OpId op, Time time) {
  if (delays_.empty()) delays_.resize(graph_.num_ops());
  delays_[op] = std::max(delays_[op], time);
}

Bytes ClusterState::overrun(OpId op, DeviceId device) const {
  Bytes copies;
  for (const Edge& edge : graph_.in_edges(op))
    if (edge.tensor.has_value() && slots_[edge.from].device != device &&
        find_copy(*edge.tensor, device) == nullptr)
      copies += graph_.size(*edge.tensor);
  return memory_.overrun({op, device, copies, opens_group(op), !slots_[op].decided.has_value()});
}

void ClusterState::place(OpId op, DeviceId device) {
  Time start = std::max(free_[device], collect_inputs(op, device, keep_copies_));
  std::sort(remotes_.begin(), remotes_.end(), [](const Remote& a, const Remote& b) {
    return std::tie(a.requested, a.tensor) < std::tie(b.requested, b.tensor);
  });
  sent_.clear();
  for (const Remote& remote : remotes_) {
    send(remote, device);
    sent_.push_back(remote.tensor);
    start = std::max(start, copies_.back().arrival);
  }

  const std::optional<Time> takes = costs_.compute_time(op, device);
  BAECHI_ASSERT(takes.has_value(), "placed where it can not run");
  Slot& slot = slots_[op];
  slot.end = start + *takes;
  slot.device = device;
  slot.placed = true;
  free_[device] = start + *takes;
  order_[device].push_back(op);
  ++num_placed_;
  use(device);

  const bool opens = opens_group(op);
  if (opens) {
    group_device_[*slot.group] = device;
    for (const OpId member : graph_.members(*slot.group)) slots_[member].decided = device;
  }
  if (memory_.ample()) return;
  memory_.take(op, device, opens);
  use_inputs(op, device, start + *takes);
}

void ClusterState::send(const Remote& remote, DeviceId to) {
  const Time end = queues_.serve(remote.from, to, remote.requested, remote.takes).end;
  copies_.push_back({end, end, to, first_copy_[remote.tensor]});
  first_copy_[remote.tensor] = static_cast<std::uint32_t>(copies_.size() - 1);
  if (memory_.ample()) return;
  memory_.add_copy(to, graph_.size(remote.tensor));
  uses_[remote.tensor].last_use = std::max(uses_[remote.tensor].last_use, end);
}

// Every input is in use on `device` until `end`; the last consumer of a tensor frees it everywhere.
void ClusterState::use_inputs(OpId op, DeviceId device, Time end) {
  for (const Edge& edge : graph_.in_edges(op)) {
    if (!edge.tensor.has_value()) continue;
    TensorUse& use = uses_[*edge.tensor];
    if (slots_[edge.from].device == device) {
      use.last_use = std::max(use.last_use, end);
    } else {
      for (std::optional<std::uint32_t> at = first_copy_[*edge.tensor]; at; at = copies_[*at].next)
        if (copies_[*at].device == device)
          copies_[*at].last_use = std::max(copies_[*at].last_use, end);
    }
    if (--use.consumers_left == 0) release(*edge.tensor);
  }
}

void ClusterState::release(TensorId tensor) {
  const OpId producer = graph_.producer(tensor);
  if (graph_.retains_outputs(producer)) return;
  memory_.free_later(slots_[producer].device, uses_[tensor].last_use, graph_.home_size(tensor));
  for (std::optional<std::uint32_t> at = first_copy_[tensor]; at; at = copies_[*at].next)
    memory_.free_later(copies_[*at].device, copies_[*at].last_use, graph_.size(tensor));
}

PlacedGraph ClusterState::take_plan() {
  BAECHI_ASSERT(num_placed_ == graph_.num_ops(), "a plan with operators left over");
  Placement placement;
  placement.reserve(graph_.num_ops());
  for (const OpId op : graph_.ops()) placement.push_back(slots_[op].device);
  return {std::move(placement), std::move(order_)};
}

}  // namespace baechi
