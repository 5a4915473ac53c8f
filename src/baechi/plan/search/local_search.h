// SPDX-License-Identifier: Apache-2.0
// One stream of refine's local search: a placement, with device orders where the executor keeps to
// the plan's, moves on it, and the memory of the best one seen. Beyond the paper.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "baechi/base/cancel.h"
#include "baechi/base/random.h"
#include "baechi/cost/cost_model.h"
#include "baechi/graph/repetition.h"
#include "baechi/plan/fit/memory_needs.h"
#include "baechi/plan/search/blame.h"
#include "baechi/schedule/execution_order.h"
#include "baechi/schedule/schedule.h"
#include "baechi/simulate/block_replay.h"
#include "baechi/simulate/memory_ceiling.h"
#include "baechi/simulate/simulator.h"

namespace baechi {

struct LocalSearchOptions {
  std::uint64_t seed = 1;
  ExecutionOrder order = ExecutionOrder::kPlanned;
  // Of a graph that repeats: some moves are made on all images at once. They outlive the search.
  const Images* images = nullptr;
  // Late acceptance: a step may be as long as the one of so many moves ago.
  std::size_t history = 48;
  bool may_lack = true;  // memory, between two plans that fit
};

class LocalSearch {
 public:
  // Requires a start as it is executed in that order, that fits.
  LocalSearch(const CostModel& costs, const Units& units, const PlacedGraph& start,
              const LocalSearchOptions& options);
  LocalSearch(const LocalSearch&) = delete;
  LocalSearch& operator=(const LocalSearch&) = delete;

  // Goes on for so much work, or until `stop` says so, which is asked once in a while. A unit of work
  // is about what replaying one block of operators takes (simulate/block_replay.h).
  template <class Stop>
  void run(std::int64_t work, const Stop& stop) {
    constexpr std::int64_t kWhile = 10'000;  // units, less than a millisecond
    const std::int64_t end = work_ + work;
    while (work_ < end && !stop())
      for (const std::int64_t next = std::min(end, work_ + kWhile); work_ < next;) step();
  }

  // Takes the unit to the device if it may run there, the step is then no longer than `most`, and it
  // fits. True if so.
  bool take(UnitId unit, DeviceId device, Time most);

  // Continues from `placed` instead; it is as it is executed and fits.
  void restart(const PlacedGraph& placed);

  const PlacedGraph& now() const { return now_; }
  Time makespan_now() const { return makespan_; }
  std::int64_t work() const { return work_; }
  Time best_makespan() const { return best_makespan_; }
  const PlacedGraph& best() const { return best_; }
  std::int64_t evaluations() const { return evaluations_; }

 private:
  using Rank = std::int64_t;
  static constexpr Rank kRankGap = Rank{1} << 24;
  struct Trip {
    UnitId unit;
    DeviceId to;
  };
  struct Change {  // of the last move, for undo()
    OpId op;
    DeviceId device;
    Rank rank;
  };

  // Ranks of operators on different devices may be equal; ids tell them apart.
  auto by_rank() const {
    return [this](OpId a, OpId b) { return rank_[a] != rank_[b] ? rank_[a] < rank_[b] : a < b; };
  }

  void step();  // tries one move
  bool propose();
  bool propose_for(const Blame& blame);
  void move(UnitId unit, DeviceId device);
  // At once, where that is allowed; of several trips of a unit the first.
  void move_all(std::vector<Trip>& trips);
  void move_region(UnitId seed, DeviceId device, std::size_t size);
  bool move_run(OpId op);
  bool exchange_spans(OpId op);
  bool hoist(OpId op, OpId before);
  bool postpone(OpId op, OpId behind);
  bool reorder();
  void repeat_move();
  bool make_room();
  DeviceId other_device(UnitId unit);
  std::optional<UnitId> any_unit_on(DeviceId device);
  bool allowed(UnitId unit, DeviceId device) const;

  Time makespan();
  // A step that takes longer than `most` may be told as any time beyond it.
  Time makespan(Time most);
  double lack();  // of memory, in capacities of devices; 0: it fits
  Time cost(Time makespan, double lack) const;
  bool all_keep_ranks() const;  // those that changed
  void accept(Time makespan, double lack);
  void undo();
  template <class Target>
  void relocate(const Target& target);
  void set_rank(OpId op, Rank rank);
  void number_ranks(std::span<const OpId> sequence);
  IdVector<OpId, std::optional<OpId>> previous_on_device() const;
  void trace_critical_path();

  const CostModel* costs_;
  const Units* units_;
  ExecutionOrder order_;
  const Images* images_;
  const bool may_lack_;
  Simulator simulator_;
  // Where devices keep to an order:
  std::optional<simulation::BlockReplay> blocks_;
  std::optional<simulation::MemoryCeiling> ceiling_;
  Random random_;

  PlacedGraph now_;  // where the search is, or a move away from it
  // Topological; every device order, where there is one, is sorted by it, then by id. Moves change
  // it where the plan's order is kept to.
  IdVector<OpId, Rank> rank_;
  Time makespan_;              // of where the search is
  double lack_ = 0;            // there
  double price_ = 4;           // of a capacity that lacks, in makespans
  std::vector<Time> history_;  // of the last moves, in turn
  std::size_t step_ = 0;
  std::vector<Blame> critical_;   // of where the search is; empty: to be traced
  IdVector<OpId, OpSlot> slots_;  // of where the search is, while the path is traced

  std::vector<Change> changes_;
  DeviceId overfull_{0};      // where the last look found no room
  std::vector<OpId> moving_;  // what relocate() takes elsewhere
  IdVector<OpId, bool> is_moving_;

  PlacedGraph best_;
  Time best_makespan_;
  std::int64_t evaluations_ = 0;
  std::int64_t work_ = 0;
};

}  // namespace baechi
