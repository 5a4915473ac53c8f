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

PairQueue::PairQueue(ClusterState& state, const AllowedDevices& allowed, const Priority& priority)
    : state_(state),
      allowed_(allowed),
      priority_(priority),
      lanes_(state.num_devices()),
      ready_(state.costs().graph().num_ops()),
      group_followed_(state.costs().graph().num_groups()),
      dropped_(state.costs().graph().num_ops(), state.num_devices()),
      parent_stamp_(state.num_devices()) {
  BAECHI_ASSERT(state.costs().graph().num_ops() < std::size_t{1} << 31, "no bit left for a tag");
  for (std::vector<DeviceId>& devices : interchangeable_devices(state.costs()))
    classes_.push_back({std::move(devices), {}, {}});
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
  const auto in = state_.costs().graph().in_edges(op);
  const bool exact =
      !state_.queues_matter() ||
      std::none_of(in.begin(), in.end(), [](const Edge& edge) { return edge.tensor; });
  const Time key = common + slowdown(op, *other);
  lane.future.push(entry_of(op, key, Time(0), exact));
  Time earliest = state_.free(lane.devices.front());
  for (const DeviceId device : lane.devices) earliest = std::min(earliest, state_.free(device));
  bound_by(lanes_.size() + c, {std::max(key, earliest + slowdown(op, *other)), Time(0),
                               priority_.rank[op], op, lane.devices.front()});
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
    queued_heap(device, *arrival.queue)
        .push(entry_of(op, arrival.load, arrival.load, arrival.one_source));
  } else if (arrival.ready <= free) {
    lane.available.push(entry_of(op, slow, arrival.load, exact));
  } else {
    lane.future.push(entry_of(op, start + slow, arrival.load, exact));
  }
}

PairQueue::Heap& PairQueue::queued_heap(DeviceId device, DeviceId source) {
  std::vector<QueuedHeap>& queued = lanes_[device].queued;
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
  Time earliest = state_.free(lane.devices.front());
  for (const DeviceId device : lane.devices) earliest = std::min(earliest, state_.free(device));
  for (;;) {
    for (Heap* heap : {&lane.available, &lane.future})
      while (!heap->empty() &&
             (state_.placed(heap->top().op()) || state_.decided(heap->top().op()).has_value()))
        heap->pop();
    const bool some_available = !lane.available.empty();
    if (!some_available && lane.future.empty()) return std::nullopt;

    Heap* heap = some_available ? &lane.available : &lane.future;
    if (some_available && !lane.future.empty()) {
      Entry available = lane.available.top();
      available.key += earliest;
      if (lane.future.top() < available) heap = &lane.future;
    }
    const Entry entry = heap->top();
    const Time slow = slowdown(entry.op(), lane.devices.front());
    Time start = earliest;
    if (heap == &lane.future) {
      start = entry.key - slow;
      if (entry.exact() && start <= earliest) {
        heap->pop();
        lane.available.push(entry_of(entry.op(), slow, Time(0), true));
        continue;
      }
    }
    const auto device = std::find_if(lane.devices.begin(), lane.devices.end(),
                                     [&](DeviceId d) { return state_.free(d) <= start; });
    if (entry.exact() && !dropped_.contains_any(entry.op()) &&
        held_until(entry.op(), *device) <= start)
      return Candidate{start + slow, Time(0), entry.rank, entry.op(), *device};
    heap->pop();
    stamp_parent_devices(entry.op());
    split(entry.op(), lane);
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
  look_at_stranded_ = true;
}

// Operators without a device get those back that have room now.
void PairQueue::revive() {
  for (const DeviceId device : lanes_.keys()) state_.advance_memory(device, now_);
  if (!look_at_stranded_ && frees_seen_ == state_.memory().num_frees()) return;
  look_at_stranded_ = false;
  frees_seen_ = state_.memory().num_frees();
  const std::vector<OpId> stranded = dropped_.stranded();
  for (const OpId op : stranded) {
    for (const DeviceId device : lanes_.keys()) {
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
