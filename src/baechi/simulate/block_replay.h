// SPDX-License-Identifier: Apache-2.0
// The times of a step whose devices keep to given orders, for searches that change little between
// replays: as Replay tells them, without walking over what cannot matter.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "baechi/base/id.h"
#include "baechi/base/units.h"
#include "baechi/base/wide.h"
#include "baechi/cluster/transfer_queues.h"
#include "baechi/cost/cost_model.h"
#include "baechi/schedule/schedule.h"
#include "baechi/simulate/event_tree.h"
#include "baechi/simulate/link_clocks.h"
#include "baechi/simulate/replay_graph.h"

namespace baechi::simulation {

struct Copy {  // of a tensor, on a device that received it
  TensorId tensor;
  DeviceId to;
  Time start, end;  // of its transfer
};

// A device that keeps to a topological order has finished all local producers of an operator when
// its turn comes. So only edges between devices make it wait, and neighbours in its order with no
// such edge between them are one block: they run without a gap, and nobody hears of it before the
// last one ends. The replay runs blocks; which they are is kept up from move to move.
//
// Refers to the cost model, which must outlive it.
class BlockReplay {
 public:
  explicit BlockReplay(const CostModel& costs);

  // Forgets all moves. Requires what simulate() accepts, an order, and one in which every operator
  // comes behind those on its device that it depends on, directly or by way of other devices.
  void start(const PlacedGraph& placed);
  // `op` is on another device from now on. The orders must follow before the next replay.
  void move(OpId op, DeviceId device);
  void reorder(DeviceId device) { stale_[device] = true; }

  Time makespan(const DeviceOrder& orders);
  // The same, but a step that takes longer than `most` may be told as any time beyond it, as soon
  // as that is sure. Then nothing else is known of this replay.
  struct Limit {
    Time most;
    // All that has changed since keep() ranks so high or lower. Edges and orders lead to higher
    // ranks.
    const IdVector<OpId, std::int64_t>* rank;
    std::int64_t changed;
  };
  Time makespan(const DeviceOrder& orders, const Limit& limit);
  // The last one is what the next ones are changes of.
  void keep();
  std::size_t num_blocks() const;
  // What the last makespan() took, in blocks of a graph that caches hold.
  std::int64_t work() const;

  // Of the last makespan(), with the orders that it was given.
  void tell(const DeviceOrder& orders, IdVector<OpId, OpSlot>& slots) const;
  // Of the last makespan(): what other devices received, in the order of requests.
  std::span<const Copy> copies() const { return copies_; }
  // Memory would suffice if nothing were ever given back.
  bool has_room_for_all() const;
  const ReplayGraph& edges() const { return edges_; }

 private:
  struct Placed {  // an operator where it is
    Time duration;
    std::uint32_t remote_in = 0, remote_out = 0;  // its edges from and to other devices
  };
  struct Outbox {         // what an operator sends, until somebody moves
    std::uint32_t begin;  // in `sends_` and `readers_`, with room for all of its edges
    std::uint32_t sends = 0, followers = 0;
    bool stale = true;
  };
  struct Send {  // of a tensor, to its next few readers
    Time takes;
    TensorId tensor{0};
    DeviceId to{0};
    std::uint32_t readers = 0;
  };
  struct Block {
    OpId head, tail;
    std::uint32_t remote_in;   // edges
    std::uint32_t outbox = 0;  // where that of its tail begins, if somebody waits for it elsewhere
    bool sends = false;
    std::uint32_t ending = 0;  // operators without length at its end
    Time duration = {};

    std::uint32_t waits_for = 0;  // edges whose producers have not finished
    // When the last of what it waits for is there; once it is started, when that is.
    Instant ready = {};
  };
  struct Worker {  // a device at work
    std::vector<Block> blocks;
    Time load;  // of all blocks
    std::size_t next = 0;
    Instant free;
    bool busy = false;
    Time left;          // that it will still be at work, at least
    WideInt taken = 0;  // bytes of its operators, all at once but for the largest temporary memory
  };

  void put(OpId op, DeviceId device);
  void take_away(OpId op);
  void find_blocks(DeviceId device, const std::vector<OpId>& order);
  void find_sends(OpId op);
  void provide_variables();
  Time replay(const DeviceOrder& orders);
  bool is_over(const Worker& worker, const Block& block, Time end) const;
  void begin(DeviceId device);
  void finish(DeviceId device, Instant now);
  void send(OpId op, DeviceId from, Instant now);
  void arrive(OpId op, DeviceId device, Instant at);

  const CostModel* costs_;
  const OpGraph* graph_;
  ReplayGraph edges_;
  LinkClocks clocks_;
  TransferQueues queues_;
  EventTree events_;

  std::vector<OpId> variables_;
  IdVector<OpId, WideInt> keeps_;  // permanent memory and outputs, in bytes
  Placement device_;
  IdVector<OpId, Placed> placed_;
  IdVector<OpId, std::uint32_t> block_of_;  // of heads
  IdVector<DeviceId, Worker> workers_;
  IdVector<DeviceId, bool> stale_;  // its blocks are no longer right
  Bytes largest_temporary_;

  IdVector<OpId, Outbox> outboxes_;
  std::vector<Send> sends_;
  std::vector<OpId> readers_;  // and after them, followers on other devices
  std::vector<DeviceId> reached_;
  std::size_t arrivals_ = 0;  // of the last makespan(), at readers and followers
  std::vector<Copy> copies_;

  const Limit* limit_ = nullptr;  // of this replay, if there is one
  bool over_ = false;
  std::vector<DeviceId> finished_;  // a device for each block, in the order of their ends
  // From the end of an operator to that of the step, at least, where something is known.
  IdVector<OpId, Time> ahead_;
};

}  // namespace baechi::simulation
