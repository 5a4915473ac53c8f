// SPDX-License-Identifier: Apache-2.0
#include "baechi/place/list/pair_queue.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "baechi/base/assert.h"
#include "baechi/place/list/device_classes.h"

namespace baechi {

struct PairQueue::Top {
  enum class Where { kAvailable, kFuture, kQueued, kDelayed };
  Candidate candidate;
  Where where;
  Heap* heap;
};

struct PairQueue::InClass {  // of an operator: the device of a class that it can start on first
  CommonArrival arrival;
  Time start;
  DeviceId device;
};

PairQueue::PairQueue(ClusterState& state, const AllowedDevices& allowed, const Priority& priority)
    : state_(state),
      allowed_(allowed),
      priority_(priority),
      lanes_(state.num_devices()),
      asks_classes_(state.queues_matter() && state.costs().cluster().num_channels() == 0),
      ready_(state.costs().graph().num_ops()),
      group_followed_(state.costs().graph().num_groups()),
      dropped_(state.costs().graph().num_ops(), state.num_devices()),
      frees_seen_(state.num_devices()),
      unseen_(state.costs().graph().num_ops()),
      parent_stamp_(state.num_devices()) {
  BAECHI_ASSERT(state.costs().graph().num_ops() < std::size_t{1} << 31, "no bit left for a tag");
  for (std::vector<DeviceId>& devices : interchangeable_devices(state.costs()))
    classes_.push_back({.devices = std::move(devices), .free = {}});
  class_of_.resize(lanes_.size());
  for (std::size_t c = 0; c < classes_.size(); ++c)
    for (const DeviceId device : classes_[c].devices) class_of_[device] = c;
  bounds_.resize(lanes_.size() + classes_.size());

  const CostModel& costs = state.costs();
  if (costs.num_classes() == 1) return;
  fastest_.resize(costs.graph().num_ops());
  for (const OpId op : costs.graph().ops()) {
    std::optional<Time> fastest;
    for (const DeviceId device : costs.cluster().devices())
      if (allowed(op, device)) {
        const Time time = *costs.compute_time(op, device);
        fastest = std::min(fastest.value_or(time), time);
      }
    fastest_[op] = fastest.value_or(Time(0));
  }
}

Time PairQueue::slowdown(OpId op, DeviceId device) const {
  if (fastest_.empty()) return Time(0);
  return *state_.costs().compute_time(op, device) - fastest_[op];
}

bool PairQueue::stale(OpId op, DeviceId device) const {
  return !state_.open_to(op, device) || dropped_.contains(op, device);
}

void PairQueue::bound_by(LaneIndex lane, const Candidate& candidate) {
  if (!bounds_[lane].has_value() || candidate < *bounds_[lane]) bounds_[lane] = candidate;
}

// ---- into the queue

void PairQueue::add(OpId op) {
  ready_[op] = true;
  if (const auto device = state_.decided(op)) {
    if (dropped_.contains(op, *device)) return reopen(op);
    dropped_.unstrand(op);
    return push(op, *device);
  }
  stamp_parent_devices(op);
  for (std::size_t c = 0; c < classes_.size(); ++c) add_to_class(op, c);
}

void PairQueue::stamp_parent_devices(OpId op) {
  ++stamp_;
  parent_devices_.clear();
  for (const Edge& edge : state_.costs().graph().in_edges(op)) {
    const DeviceId device = state_.device(edge.from);
    if (is_parent_device(device)) continue;
    parent_stamp_[device] = stamp_;
    parent_devices_.push_back(device);
  }
}

void PairQueue::add_to_class(OpId op, std::size_t c) {
  ClassLane& lane = classes_[c];
  const auto other = std::find_if(lane.devices.begin(), lane.devices.end(),
                                  [&](DeviceId device) { return !is_parent_device(device); });
  const bool everywhere =
      allowed_.everywhere() || std::all_of(lane.devices.begin(), lane.devices.end(),
                                           [&](DeviceId device) { return allowed_(op, device); });
  if (other == lane.devices.end() || !everywhere || lane.devices.size() == 1) {
    for (const DeviceId device : lane.devices)
      if (allowed_(op, device)) push(op, device);
    return;
  }

  const Time common = state_.undisturbed_arrival(op, *other);
  for (const DeviceId device : parent_devices_)
    if (class_of_[device] == c) push_if_special(op, device, common);
  look_at(lane);
  const auto in = state_.costs().graph().in_edges(op);
  const bool sends =
      state_.queues_matter() &&
      std::any_of(in.begin(), in.end(), [](const Edge& edge) { return edge.tensor; });
  if (!sends || !asks_classes_) {
    const Time slow = slowdown(op, *other), key = common + slow;
    lane.future.push(entry_of(op, key, Time(0), !sends));
    bound_by(lanes_.size() + c, {std::max(key, lane.free + slow), Time(0), priority_.rank[op], op,
                                 lane.devices.front()});
    return;
  }
  for (const Edge& edge : in)
    if (edge.tensor.has_value())
      state_.for_each_copy(*edge.tensor, [&](DeviceId device) {
        if (class_of_[device] == c) push(op, device);
      });
  const InClass first = first_in(lane, op);
  file(op, lane, first);
  bound_by(lanes_.size() + c, {first.start + slowdown(op, first.device), first.arrival.load,
                               priority_.rank[op], op, first.device});
}

void PairQueue::look_at(ClassLane& lane) const {
  const auto queue_end = [&](DeviceId device) {
    return asks_classes_ ? state_.queue_end(device, device) : Time(0);
  };
  lane.free = state_.free(lane.devices.front());
  lane.queue = queue_end(lane.devices.front());
  for (const DeviceId device : lane.devices) {
    lane.free = std::min(lane.free, state_.free(device));
    lane.queue = std::min(lane.queue, queue_end(device));
  }
}

// As if none of the class held an input: those that do have their own entries, which are earlier.
PairQueue::InClass PairQueue::first_in(const ClassLane& lane, OpId op) const {
  InClass first{state_.common_arrival(op, lane.devices[0], lane.devices[1]), {}, lane.devices[0]};
  const CommonArrival& arrival = first.arrival;
  std::optional<Time> earliest;
  for (const DeviceId device : lane.devices) {
    const Time start = std::max(std::max(state_.free(device), arrival.ready),
                                state_.queue_end(device, device) + arrival.load);
    if (earliest.has_value() && start >= *earliest) continue;
    earliest = start;
    first.device = device;
  }
  first.start = *earliest;
  return first;
}

void PairQueue::file(OpId op, ClassLane& lane, const InClass& first) {
  const auto& [arrival, start, device] = first;
  const Time slow = slowdown(op, device), load = arrival.load;
  const bool waits = slow == Time(0) && start > lane.free;
  if (start == lane.free) {
    lane.available.push(entry_of(op, slow, load, false));
  } else if (waits && start == lane.queue + load) {
    lane.behind_shortest.push(entry_of(op, load, load, false));
  } else if (waits && arrival.source && start == state_.sending_end(*arrival.source) + load) {
    queued_heap(lane.queued, *arrival.source).push(entry_of(op, load, load, false));
  } else {
    lane.future.push(entry_of(op, start + slow, load, false));
  }
}

// A parent's device needs an entry of its own when the inputs are there earlier than at `common`.
// (With queues they may be, in a way that a comparison at one moment does not show.)
void PairQueue::push_if_special(OpId op, DeviceId device, Time common) {
  const Arrival arrival = state_.arrival(op, device);
  if (!state_.queues_matter() && arrival.ready >= common) return;
  file(op, device, arrival);
}

// One entry for each device of the class that has none of its own.
void PairQueue::split(OpId op, const ClassLane& lane) {
  const auto other = std::find_if(lane.devices.begin(), lane.devices.end(),
                                  [&](DeviceId device) { return !is_parent_device(device); });
  const Time common = state_.undisturbed_arrival(op, *other);
  for (const DeviceId device : lane.devices) {
    if (!allowed_(op, device) || dropped_.contains(op, device)) continue;
    const Arrival arrival = state_.arrival(op, device);
    const bool has_its_own =
        is_parent_device(device) && (state_.queues_matter() || arrival.ready < common);
    if (!has_its_own) file(op, device, arrival);
  }
}

void PairQueue::push(OpId op, DeviceId device) { file(op, device, state_.arrival(op, device)); }

void PairQueue::file(OpId op, DeviceId device, const Arrival& arrival) {
  Lane& lane = lanes_[device];
  const Time slow = slowdown(op, device), free = state_.free(device);
  const Time start = std::max(free, arrival.ready);
  const bool exact = !arrival.queue.has_value();
  bound_by(device.index(), {start + slow, arrival.load, priority_.rank[op], op, device});
  if (!exact && slow == Time(0) &&
      start == std::max(free, state_.queue_end(*arrival.queue, device) + arrival.load)) {
    queued_heap(lane.queued, *arrival.queue)
        .push(entry_of(op, arrival.load, arrival.load, arrival.one_source));
  } else if (arrival.ready <= free) {
    lane.available.push(entry_of(op, slow, arrival.load, exact));
  } else {
    lane.future.push(entry_of(op, start + slow, arrival.load, exact));
  }
}

PairQueue::Heap& PairQueue::queued_heap(std::vector<QueuedHeap>& queued, DeviceId source) {
  const auto at = std::find_if(queued.begin(), queued.end(),
                               [&](const QueuedHeap& known) { return known.source == source; });
  if (at != queued.end()) return at->heap;
  queued.push_back({source, {}});
  return queued.back().heap;
}

// ---- out of the queue

std::optional<Candidate> PairQueue::earliest() {
  for (;;) {
    if (!dropped_.stranded().empty()) revive();
    std::optional<LaneIndex> first;
    for (LaneIndex lane = 0; lane < bounds_.size(); ++lane)
      if (bounds_[lane].has_value() && (!first.has_value() || *bounds_[lane] < *bounds_[*first]))
        first = lane;
    if (!first.has_value()) {
      const std::optional<Time> next_free = state_.memory().next_free();
      if (dropped_.stranded().empty() || !next_free.has_value()) return std::nullopt;
      now_ = std::max(now_, *next_free);
      continue;
    }
    const Candidate before = *bounds_[*first];
    settle(*first);
    if (bounds_[*first] != before) continue;
    now_ = std::max(now_, before.key);
    return before;
  }
}

// Makes the lane's bound exact.
void PairQueue::settle(LaneIndex lane) {
  if (lane >= lanes_.size()) {
    bounds_[lane] = class_top(classes_[lane - lanes_.size()]);
    return;
  }
  const DeviceId device(lane);
  std::optional<Top> top = device_top(device);
  while (top.has_value() && (!confirm(*top, device) || postpone(*top, device)))
    top = device_top(device);
  bounds_[lane] = top.has_value() ? std::optional(top->candidate) : std::nullopt;
}

std::optional<PairQueue::Top> PairQueue::device_top(DeviceId device) {
  Lane& lane = lanes_[device];
  const Time free = state_.free(device);
  for (;;) {
    Top best{{}, Top::Where::kAvailable, nullptr};
    const auto offer = [&](Top::Where where, Heap& heap, Time least, Time offset) {
      if (heap.empty()) return;
      const Entry& entry = heap.top();
      const Time key = std::max(least, offset + entry.key);
      if (best.heap != nullptr) {
        const Candidate& other = best.candidate;
        if (key > other.key) return;
        if (key == other.key &&
            std::tie(entry.load, entry.rank) >= std::tie(other.load, other.rank))
          return;
      }
      best = Top{{key, entry.load, entry.rank, entry.op(), device}, where, &heap};
    };
    offer(Top::Where::kAvailable, lane.available, Time(0), free);
    offer(Top::Where::kFuture, lane.future, Time(0), Time(0));
    for (QueuedHeap& queued : lane.queued)
      if (!queued.heap.empty())
        offer(Top::Where::kQueued, queued.heap, free, state_.queue_end(queued.source, device));
    offer(Top::Where::kDelayed, lane.delayed, Time(0), Time(0));
    if (best.heap == nullptr) return std::nullopt;
    if (!stale(best.candidate.op, device)) return best;
    best.heap->pop();
  }
}

// The top's key is true now. If not, the entry goes to where it belongs.
bool PairQueue::confirm(const Top& top, DeviceId device) {
  const Entry entry = top.heap->top();
  const Time free = state_.free(device), slow = slowdown(entry.op(), device);
  if (entry.exact()) {
    if (top.where != Top::Where::kFuture || entry.key - slow > free) return true;
    top.heap->pop();
    lanes_[device].available.push(entry_of(entry.op(), slow, entry.load, true));
    return false;
  }
  const Arrival arrival = state_.arrival(entry.op(), device);
  const Time key = std::max(free, arrival.ready) + slow;
  if (top.where == Top::Where::kDelayed) {
    if (key <= top.candidate.key && arrival.load == entry.load) return true;
  } else if (key == top.candidate.key && arrival.load == entry.load &&
             (top.where != Top::Where::kFuture || arrival.ready > free)) {
    return true;
  }
  top.heap->pop();
  file(entry.op(), device, arrival);
  return false;
}

std::optional<Candidate> PairQueue::class_top(ClassLane& lane) {
  look_at(lane);
  for (;;) {
    Heap* heap = nullptr;
    Entry top;  // with what it promises
    const auto offer = [&](Heap& other, Time least, Time offset) {
      if (other.empty()) return;
      Entry entry = other.top();
      entry.key = std::max(least, offset + entry.key);
      if (heap != nullptr && !(entry < top)) return;
      heap = &other;
      top = entry;
    };
    offer(lane.available, Time(0), lane.free);
    offer(lane.future, Time(0), Time(0));
    offer(lane.behind_shortest, lane.free, lane.queue);
    for (QueuedHeap& queued : lane.queued)
      offer(queued.heap, lane.free, state_.sending_end(queued.source));
    if (heap == nullptr) return std::nullopt;

    const OpId op = top.op();
    if (state_.placed(op) || state_.decided(op).has_value()) {
      heap->pop();
      continue;
    }
    const Time slow = slowdown(op, lane.devices.front());
    if (top.exact() && heap == &lane.future && top.key - slow <= lane.free) {
      heap->pop();
      lane.available.push(entry_of(op, slow, Time(0), true));
      continue;
    }
    std::optional<Candidate> first;
    if (top.exact()) {
      const auto device = std::ranges::find_if(
          lane.devices, [&](DeviceId d) { return state_.free(d) <= top.key - slow; });
      first = Candidate{top.key, Time(0), top.rank, op, *device};
    } else if (asks_classes_) {
      const InClass found = first_in(lane, op);
      if (found.start + slow != top.key) {
        heap->pop();
        file(op, lane, found);
        continue;
      }
      first = Candidate{top.key, top.load, top.rank, op, found.device};
    }
    if (first.has_value() && !dropped_.contains_any(op) &&
        held_until(op, first->device) <= first->key - slow)
      return first;
    heap->pop();
    stamp_parent_devices(op);
    split(op, lane);
  }
}

// ---- held devices

// `op` must not start on `device` before: 0 unless the device is held for another.
Time PairQueue::held_until(OpId op, DeviceId device) const {
  const std::optional<Hold>& hold = lanes_[device].hold;
  if (!hold.has_value() || hold->favorite == op || hold->until <= state_.free(device))
    return Time(0);
  Time everywhere;
  for (const DeviceId other : lanes_.keys())
    if (state_.may_go(op, other))
      everywhere = std::max(everywhere, state_.undisturbed_arrival(op, other));
  return std::min(hold->until, everywhere);
}

bool PairQueue::postpone(const Top& top, DeviceId device) {
  const Candidate& pair = top.candidate;
  const Time key = held_until(pair.op, device) + slowdown(pair.op, device);
  if (key <= pair.key) return false;
  top.heap->pop();
  lanes_[device].delayed.push(entry_of(pair.op, key, pair.load, false));
  return true;
}

void PairQueue::hold(DeviceId device, const Hold& hold) {
  release(device);
  lanes_[device].hold = hold;
}

void PairQueue::release(DeviceId device) {
  lanes_[device].hold.reset();
  for (const Entry& entry : lanes_[device].delayed.take())
    if (!stale(entry.op(), device)) push(entry.op(), device);
}

// ---- what a decision changes for the others

void PairQueue::placed(OpId op) {
  const OpGraph& graph = state_.costs().graph();
  const DeviceId device = state_.device(op);
  const auto waits = [&](OpId other) { return ready_[other] && !state_.placed(other); };

  // The first of a colocation group decides for all.
  if (const auto group = state_.group(op); group && !group_followed_[*group]) {
    group_followed_[*group] = true;
    for (const OpId member : graph.members(*group)) {
      if (!waits(member)) continue;
      dropped_.erase(member, device);
      dropped_.unstrand(member);
      push(member, device);
    }
  }
  // What was sent for this one need not be sent for those who read it too.
  for (const TensorId tensor : state_.sent())
    for (const Edge& edge : graph.consumers(tensor))
      if (waits(edge.to) && state_.may_go(edge.to, device) && !dropped_.contains(edge.to, device))
        push(edge.to, device);
}

void PairQueue::drop(const Candidate& pair) {
  dropped_.insert(pair.op, pair.device);
  reopen(pair.op);
}

// The pair of `op` with its decided device, if it had one, is gone: the other devices are as good.
void PairQueue::reopen(OpId op) {
  const bool was_designated = state_.undesignate(op);
  bool some_left = false;
  for (const DeviceId device : lanes_.keys()) {
    if (!state_.may_go(op, device) || dropped_.contains(op, device)) continue;
    some_left = true;
    if (was_designated) push(op, device);
  }
  if (some_left) return;
  dropped_.strand(op);
  unseen_[op] = true;
  any_unseen_ = true;
}

// Operators without a device get those back that have room now. Room comes with what is freed: a copy
// that arrives takes what the operators that read it then need less.
void PairQueue::revive() {
  freed_.clear();
  for (const DeviceId device : lanes_.keys()) {
    state_.advance_memory(device, now_);
    const std::uint64_t frees = state_.memory().num_frees(device);
    if (std::exchange(frees_seen_[device], frees) != frees) freed_.push_back(device);
  }
  if (!any_unseen_ && freed_.empty()) return;
  any_unseen_ = false;
  const auto all = lanes_.keys();
  const std::vector<DeviceId> everywhere(all.begin(), all.end());
  const std::vector<OpId> stranded = dropped_.stranded();
  for (const OpId op : stranded) {
    const std::vector<DeviceId>& devices = unseen_[op] ? everywhere : freed_;
    unseen_[op] = false;
    for (const DeviceId device : devices) {
      if (!state_.may_go(op, device) || state_.overrun(op, device) > Bytes(0)) continue;
      state_.delay(op, now_);
      dropped_.erase(op, device);
      dropped_.unstrand(op);
      push(op, device);
    }
  }
}

DoesNotFit PairQueue::failure() const {
  BAECHI_ASSERT(!dropped_.stranded().empty(), "the queue ran dry with operators left over");
  const OpId op = dropped_.stranded().front();
  std::optional<Bytes> least;
  for (const DeviceId device : lanes_.keys()) {
    if (!state_.may_go(op, device)) continue;
    const Bytes lacks = state_.overrun(op, device);
    least = std::min(least.value_or(lacks), lacks);
  }
  return {op, least.value_or(Bytes(0))};
}

}  // namespace baechi
