// SPDX-License-Identifier: Apache-2.0
// How good a partly decided placement can still become: a lower bound on the step time of all its
// completions in all orders, and which devices the undecided may still go to. Beyond the paper.
// Internal to place/.
#pragma once

#include <cstddef>
#include <vector>

#include "baechi/bounds/one_machine.h"
#include "baechi/place/exact/exact_instance.h"

namespace baechi::exact {

// Refers to the instance, which must outlive it. Keeps its memory from call to call.
class PlacementBound {
 public:
  explicit PlacementBound(const Instance& instance);

  // `domain[unit]` is where the unit may go; one device: decided. Takes out devices that no plan
  // with a step shorter than `limit` uses, and returns a lower bound on the step of the plans
  // that are left; kNever when none is.
  Ns tighten(std::vector<DeviceSet>& domain, Ns limit);

  // Of the last call, [op * devices + device], where the domain allows it: no plan starts the
  // operator earlier, and in none the step ends sooner after its end.
  const std::vector<Ns>& heads() const { return head_; }
  const std::vector<Ns>& tails() const { return tail_; }

 private:
  struct Neighbor {  // an input that may be made here or come from elsewhere (or an output)
    Ns remote;       // here at the earliest, if from elsewhere
    Ns head, time;   // of its producer, if here
  };

  DeviceSet domain_of(std::size_t op) const { return (*domain_)[in_.unit_of[op]]; }
  // Where `other` may be when `op` is on `device`.
  void find_alike(const std::vector<DeviceSet>& domain);
  DeviceSet places_of(std::size_t other, std::size_t op, std::size_t device) const;
  template <class Transfer>
  Neighbor neighbor_of(std::size_t device, std::size_t other, DeviceSet places,
                       const std::vector<Ns>& ends, const Transfer& transfer) const;
  bool fit_memory(std::vector<DeviceSet>& domain);
  void find_heads();
  void find_tails();
  Ns earliest(std::size_t op, std::size_t device);
  Ns remaining(std::size_t op, std::size_t device);
  Ns best_split(Ns least);
  bool filter(std::vector<DeviceSet>& domain, Ns limit, Ns& bound);
  Ns device_bound();
  Ns shared_load();
  Ns queue_bound();
  void add_transfer(std::size_t tensor);
  Ns least_end(std::size_t op) const;

  const Instance& in_;
  const std::vector<DeviceSet>* domain_ = nullptr;
  // Twins that every domain has both of, or neither: what is true of one is true of the others.
  std::vector<DeviceSet> alike_;  // [device]: with itself; empty but for the first of them
  DeviceSet first_ = 0;           // of all that are alike, the first,
  DeviceSet first_two_ = 0;       // or the first two
  std::vector<Ns> head_, tail_;
  std::vector<Neighbor> neighbors_;
  std::vector<std::pair<Ns, Ns>> local_;   // (head, time) of the inputs made here
  std::vector<std::pair<Ns, Ns>> queued_;  // (request, time) of those that must come from elsewhere
  std::vector<bounds::HeadTailJob> jobs_;
  std::vector<std::vector<bounds::HeadTailJob>> queue_jobs_;
  bounds::PreemptiveMachine machine_;
};

}  // namespace baechi::exact
