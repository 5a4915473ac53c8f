// SPDX-License-Identifier: Apache-2.0
// A placement of one replica, put on the devices of all replicas: which buckets their gradients are
// reduced in, in which order devices run, and what is shorter when operators move. Beyond the
// paper.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "baechi/base/cancel.h"
#include "baechi/cost/cost_model.h"
#include "baechi/graph/replicas.h"
#include "baechi/graph/unroll.h"
#include "baechi/plan/steps/replica_sets.h"
#include "baechi/schedule/plan.h"

namespace baechi {

struct OneReplica {    // whose graphs and plan outlive what is made of them
  const OpGraph& one;  // of one micro-batch, with second runs
  const Unrolled& step;
  const Plan& plan;  // on devices 0, 1, ..., which stand for the devices of every set
};

struct MadeOfReplicas {
  Unrolled step;
  Plan plan;  // simulated and verified
};

class OnAllSets {
 public:
  // Graphs and orders are made anew for each that is simulated.
  static constexpr double kWorkOfTried = 4;  // operators, for each of the step

  OnAllSets(const OneReplica& replica, const Cluster& cluster, const ReplicaDevices& sets);

  // Looks for buckets and orders of the plan's placement, then for other placements, and simulates
  // about so many operators, those of the first placement in any case; fewer where its steps, and
  // those of even runs, are all longer than `hopeless`. When asked to stop it keeps what it has.
  // Returns how many it has simulated.
  double search(double work, std::optional<Time> hopeless, const CancelFlag* cancel);
  // How much memory some device lacks for the best that was found.
  Bytes over() const { return best_->over; }
  Time makespan() const { return best_->makespan; }
  // The best in an order that a file can tell; nothing if there is none that fits.
  std::optional<MadeOfReplicas> made();

 private:
  using Positions = IdVector<OpId, std::size_t>;  // in every set, by operator of the graph of one
  enum class Order : std::uint8_t { kOfThePlan, kLongestFirst, kBackwardFirst, kShortestFirst };
  static constexpr std::array kOrders{Order::kOfThePlan, Order::kLongestFirst,
                                      Order::kBackwardFirst, Order::kShortestFirst};
  struct Tried {
    Positions positions;
    Bytes bucket;  // as many bytes close a bucket
    Order order = Order::kOfThePlan;
    Time makespan = {};
    Bytes over = {};

    auto worth() const { return std::pair(over, makespan); }
  };

  Replicas buckets_of(const Tried& tried) const;
  const Unrolled& step_with(const Replicas& replicas);
  Placement placement_on(const Unrolled& step, const Replicas& replicas,
                         const Positions& positions) const;
  DeviceOrder order_on(const Unrolled& step, const Replicas& replicas, const Placement& placement,
                       Order order) const;
  void find_units();
  bool may_be_at(const std::vector<OpId>& unit, std::size_t position) const;
  Tried tried(Tried tried);
  void try_plan();
  void try_runs();
  void improve();
  std::optional<Positions> in_runs(std::size_t count) const;
  void climb(Tried from);
  bool exhausted() const;

  const OneReplica replica_;
  const Cluster& cluster_;
  const ReplicaDevices& sets_;
  std::vector<std::pair<Time, ReducedTensor>> ready_;  // in the order in which the plan makes them
  Bytes reduced_;
  std::vector<Bytes> buckets_;            // what is usual, one for each device, and between
  std::size_t few_rings_ = 0;             // of these, first ones whose rings are no large part
  std::vector<std::vector<OpId>> units_;  // what shares a device, or is the backward pass of it
  std::optional<Tried> best_;
  Replicas replicas_;             // of the latest step that was simulated,
  std::optional<Unrolled> step_;  // which is this
  double work_ = 0;               // that is left
  const CancelFlag* cancel_ = nullptr;
};

}  // namespace baechi
