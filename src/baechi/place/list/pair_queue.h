// SPDX-License-Identifier: Apache-2.0
// The queue of (operator, device) pairs by earliest schedulable time (Paper 2.3, 2.4).
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "baechi/base/id.h"
#include "baechi/base/units.h"
#include "baechi/place/allowed_devices.h"
#include "baechi/place/list/cluster_state.h"
#include "baechi/place/list/dropped_pairs.h"
#include "baechi/place/list/four_ary_heap.h"
#include "baechi/place/list/priority.h"
#include "baechi/place/placer.h"

namespace baechi {

// What the queue is ordered by.
struct Candidate {
  // The earliest schedulable time; on unequal devices, plus what the operator takes longer there
  // than on the fastest device it may use, so that the devices of one operator compare by finish
  // while operators still compare by start.
  Time key;
  Time load;  // Arrival::load: of two pairs that can start together, the one that sends less
  std::uint32_t rank = 0;  // Priority::rank of the operator
  OpId op{0};
  DeviceId device{0};

  friend auto operator<=>(const Candidate&, const Candidate&) = default;
};

// m-SCT keeps a device for the favorite child of its last operator until `until`. Other operators
// may start there only from the moment on at which their inputs could be anywhere.
struct Hold {
  OpId favorite{0};
  Time until;
};

// As if all pairs of a ready operator and a device lay in one queue whose keys are always up to
// date, at the price of a few heap operations per operator. It relies on keys never falling while
// an operator waits: a key of the past is a lower bound, and good enough until it comes to the top.
// What pairs have in common is stored once:
//
// * An operator is ready at one common time on all devices but its parents', where it may be ready
//   earlier. So it has one entry in its class of devices (equal speed, equal links), and one on a
//   parent's device if it is ready earlier there, which without queues it is on one device at most:
//   the one that the last input need not be sent to. With transfer queues the common time is only a
//   bound: an entry on every device that holds an input, and for the others a class entry, which
//   asks all devices of the class when it comes to the top. Where an operator has been dropped or a
//   device is held, or where channels are shared, it splits into one per device.
// * Entries that wait for nothing but their device all have the key free(p), whatever that is: they
//   lie in `available` by operator. The others lie in `future` by key, and move once.
// * Entries that wait for a transfer queue lie in `queued` by what they load on it: their keys are
//   the end of the queue plus that, and move with it at no cost.
class PairQueue {
 public:
  PairQueue(ClusterState& state, const AllowedDevices& allowed, const Priority& priority);

  // Requires all parents placed and `op` not.
  // To be repeated when it has been designated a device since.
  void add(OpId op);

  // The pair with the smallest (key, load, op, device), settled against everything placed so far.
  // An operator that was dropped from all its devices is in the queue again as soon as memory is
  // freed on one. Nothing: no operator that has been added can ever be placed.
  std::optional<Candidate> earliest();

  // The device has no room: the pair leaves the queue.
  void drop(const Candidate& pair);
  // To be told after state.place(op, ...).
  void placed(OpId op);

  void hold(DeviceId device, const Hold& hold);
  void release(DeviceId device);
  const std::optional<Hold>& held(DeviceId device) const { return lanes_[device].hold; }

  // When earliest() has nothing: the operator that fits nowhere, and what the best device lacks.
  DoesNotFit failure() const;

 private:
  struct Entry {
    Time key;
    Time load;
    std::uint32_t rank = 0;
    std::uint32_t tagged_op = 0;  // two words would make an entry a third larger

    OpId op() const { return OpId(tagged_op >> 1); }
    bool exact() const { return (tagged_op & 1) != 0; }  // no need to look at the inputs again

    friend bool operator<(const Entry& a, const Entry& b) {
      if (a.key != b.key) return a.key < b.key;
      return a.load != b.load ? a.load < b.load : a.rank < b.rank;
    }
  };
  using Heap = FourAryHeap<Entry>;
  struct QueuedHeap {
    DeviceId source;  // or the device itself: its incoming queue
    Heap heap;        // entry.key == entry.load; all without a slowdown
  };
  struct Lane {                      // the pairs of one device
    Heap available;                  // ready before the device is free; entry.key is the slowdown
    Heap future;                     // not before entry.key
    std::vector<QueuedHeap> queued;  // not before the queue's end plus entry.load
    Heap delayed;                    // while the device is held: not before entry.key
    std::optional<Hold> hold;
  };
  struct ClassLane {
    std::vector<DeviceId> devices;
    Heap available = {}, future = {};
    Heap behind_shortest = {};            // not before `queue` plus entry.load
    std::vector<QueuedHeap> queued = {};  // by their only source
    Time free, queue = {};  // the earliest end of a device's work, and of one's incoming queue
  };
  using LaneIndex = std::size_t;  // devices, then classes

  Time slowdown(OpId op, DeviceId device) const;
  bool stale(OpId op, DeviceId device) const;
  void add_to_class(OpId op, std::size_t c);
  void push(OpId op, DeviceId device);
  void file(OpId op, DeviceId device, const Arrival& arrival);
  void look_at(ClassLane& lane) const;
  struct InClass;
  InClass first_in(const ClassLane& lane, OpId op) const;
  void file(OpId op, ClassLane& lane, const InClass& first);
  static Heap& queued_heap(std::vector<QueuedHeap>& queued, DeviceId source);
  void bound_by(LaneIndex lane, const Candidate& candidate);
  bool is_parent_device(DeviceId device) const { return parent_stamp_[device] == stamp_; }
  void stamp_parent_devices(OpId op);

  void settle(LaneIndex lane);
  struct Top;  // of one lane: where it lies, and what it promises
  std::optional<Top> device_top(DeviceId device);
  bool confirm(const Top& top, DeviceId device);
  std::optional<Candidate> class_top(ClassLane& lane);
  void push_if_special(OpId op, DeviceId device, Time common);
  void split(OpId op, const ClassLane& lane);
  bool postpone(const Top& top, DeviceId device);
  Time held_until(OpId op, DeviceId device) const;
  void reopen(OpId op);
  void revive();

  Entry entry_of(OpId op, Time key, Time load, bool exact) const {
    return {key, load, priority_.rank[op], op.value() << 1 | std::uint32_t{exact}};
  }

  ClusterState& state_;
  const AllowedDevices& allowed_;
  const Priority& priority_;
  IdVector<OpId, Time> fastest_;  // over the devices it may use; empty when all are equal
  IdVector<DeviceId, Lane> lanes_;
  std::vector<ClassLane> classes_;
  IdVector<DeviceId, std::size_t> class_of_;
  const bool asks_classes_;                       // where transfers queue
  std::vector<std::optional<Candidate>> bounds_;  // by lane: nothing in it is smaller
  IdVector<OpId, bool> ready_;                    // added
  IdVector<GroupId, bool> group_followed_;
  DroppedPairs dropped_;
  Time now_;  // the latest start that was handed out
  IdVector<DeviceId, std::uint64_t> frees_seen_;
  std::vector<DeviceId> freed_;  // since the last look
  IdVector<OpId, bool> unseen_;  // stranded since then
  bool any_unseen_ = false;

  IdVector<DeviceId, std::uint32_t> parent_stamp_;
  std::uint32_t stamp_ = 0;
  std::vector<DeviceId> parent_devices_;
};

}  // namespace baechi
