// SPDX-License-Identifier: Apache-2.0
// The best order of one placement: branch and bound over what each device runs next, played moment
// by moment as the simulator does. Beyond the paper. Internal to place/.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <unordered_set>
#include <vector>

#include "baechi/cluster/transfer_queues.h"
#include "baechi/place/exact/exact_instance.h"
#include "baechi/place/exact/placement_bound.h"
#include "baechi/schedule/schedule.h"

namespace baechi::exact {

// Refers to the instance, which must outlive it. Keeps its memory from search to search.
class OrderSearch {
 public:
  // Told of an order whose step is shorter than the limit; says whether its plan is within memory
  // (moments in which several operators of no length meet are the simulator's to judge).
  using Offer = std::function<bool(const PlacedGraph&, Ns makespan)>;
  // Asked before every step; true: give up.
  using Stop = std::function<bool()>;

  explicit OrderSearch(const Instance& instance);

  // Searches all orders of `device` (by operator) with a step shorter than `limit`, which sinks
  // with every offer that is taken. `tails[op * devices + device]`: the step goes on at least so
  // long after the operator. False when it was stopped.
  bool run(const std::vector<Index>& device, const std::vector<Ns>& tails, Ns limit,
           const Offer& offer, const Stop& stop);

 private:
  // A moment and the round within it (docs/reference/semantics.md) as one number: moment * 128 +
  // round. A round starts an operator or finishes one, so there are fewer than 128.
  using Stamp = std::int64_t;

  struct Copy {  // a tensor on its way to one device
    Index tensor, to;
    Ns time;
    Ns tail;                     // the step goes on at least so long after its arrival
    std::vector<Index> readers;  // on `to`
  };
  struct Moment {  // everything that changes as time goes on
    explicit Moment(const Cluster& cluster) : queues(cluster) {}

    Stamp now = 0;
    OpSet committed = 0;  // chosen as their devices' next, or begun
    OpSet begun = 0;
    OpSet finished = 0;
    std::vector<std::optional<Index>> current;  // [device]: what it has chosen and not finished
    std::vector<Stamp> free;                    // [device]: when it finished its last one
    std::vector<Stamp> ready;                   // [op]: when its inputs are there, as far as known
    std::vector<Index> waits;                   // [op]: producers that have not finished
    std::vector<Stamp> start, finish;           // [op]: once begun
    TransferQueues queues;
    std::vector<Index> senders;            // [queue]: operators that will still use it
    std::vector<Ns> copy_start, copy_end;  // [copy]: once requested
  };

  void prepare(const std::vector<Index>& device, const std::vector<Ns>& tails);
  void add_copies(std::size_t tensor);
  void search(std::size_t depth);
  void branch(std::size_t depth, std::size_t device);
  std::optional<std::size_t> advance(Moment& at) const;  // the device that has to choose, if any
  void commit(Moment& at, std::size_t op) const;
  void begin_if_ready(Moment& at, std::size_t op) const;
  void finish(Moment& at, std::size_t op) const;
  void request(Moment& at, std::size_t tensor) const;
  void arrive(Moment& at, std::size_t op, Stamp when) const;
  OpSet choices(const Moment& at, std::size_t device) const;
  OpSet worth_trying(const Moment& at, std::size_t device, OpSet choices);
  bool monotone(const Moment& at) const;

  Ns bound(const Moment& at);
  void find_heads(const Moment& at);
  Ns device_bound(const Moment& at);
  Ns queue_bound(const Moment& at);

  bool runs_over(const Moment& at, Ns from, Ns to) const;
  bool begins_too_much(const Moment& at) const;
  bool holds_too_much(const Moment& at, std::size_t device, Ns moment) const;
  bool memory_is_ample() const;
  void complete(std::size_t depth);

  std::size_t device_of(std::size_t op) const { return (*device_)[op]; }
  Ns time(std::size_t op) const { return in_.time_on(op, device_of(op)); }

  const Instance& in_;
  const std::vector<Index>* device_ = nullptr;
  const Offer* offer_ = nullptr;
  const Stop* stop_ = nullptr;
  bool stopped_ = false, ample_ = false;
  // One device in use, and every operator takes time: what is yet to come depends on the set of
  // operators that ran, not on their order.
  bool sets_tell_all_ = false;
  std::unordered_set<OpSet> searched_;  // such sets; no plan that was wanted follows from them
  Ns limit_ = kNever;

  std::vector<Ns> tail_;   // [op], on its device
  std::vector<OpSet> on_;  // [device]
  std::vector<Copy> copies_;
  std::vector<std::pair<Index, Index>> copies_of_;  // [tensor]: begin and end in copies_
  std::vector<std::vector<Index>> queues_of_;       // [op]: those that its outputs will use
  std::vector<std::int64_t> permanent_;             // [device]

  std::vector<Moment> moments_;  // [depth]
  std::vector<Index> sequence_;  // the choices made, in order
  std::vector<Ns> head_;         // [op], of the moment at hand
  std::vector<bounds::HeadTailJob> jobs_;
  std::vector<std::vector<bounds::HeadTailJob>> queue_jobs_;
  bounds::PreemptiveMachine machine_;
};

}  // namespace baechi::exact
