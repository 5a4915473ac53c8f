// SPDX-License-Identifier: Apache-2.0
// When a placer runs out of memory: search for any placement that fits, step time second.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "baechi/base/cancel.h"
#include "baechi/base/id.h"
#include "baechi/base/units.h"
#include "baechi/cost/cost_model.h"
#include "baechi/plan/fit/memory_needs.h"
#include "baechi/schedule/execution_order.h"
#include "baechi/schedule/schedule.h"
#include "baechi/simulate/execution_simulator.h"
#include "baechi/simulate/simulator.h"

namespace baechi {

struct FitOptions {
  // Work limit of each search in simulated operators, so that the outcome does not depend on the
  // clock.
  std::int64_t simulated_ops = 5'000'000;
  ExecutionOrder order = ExecutionOrder::kPlanned;  // in which it has to fit
  const CancelFlag* cancel = nullptr;
};

// What one replay counts as, in simulated operators: something, however few operators there are.
std::int64_t replay_cost(const OpGraph& graph);

// Every placement it returns has been simulated and fits. Deterministic; what it finds with some
// work it also finds with more.
class FitSearch {
 public:
  static constexpr std::int64_t kStarts = 8;  // that pack() has

  FitSearch(const CostModel& costs, const Units& units, const FitOptions& options);

  // Moves units off the devices that run over, starting from `placed`, which need not fit and may
  // leave out the order.
  std::optional<PlacedGraph> repair(const PlacedGraph& placed);

  // Memory first: cuts several topological sequences into device segments and packs units by size,
  // each followed by repair.
  std::optional<PlacedGraph> pack();

  // What the fullest device holds in the best of the cuts that pack() starts from. On devices of
  // equal capacity they do not depend on it.
  std::optional<Bytes> peak_of_cuts();

  // What the last search took, in simulated operators.
  std::int64_t work() const {
    return options_.simulated_ops - std::max<std::int64_t>(work_left_, 0);
  }

 private:
  static constexpr std::size_t kFewDevices = 4, kFewPairs = 4'000;

  using Assignment = IdVector<UnitId, DeviceId>;
  using Sequence = std::vector<OpId>;  // topological; planned orders are restrictions of it

  struct Outcome {
    Bytes over;  // sum of all devices' excess
    Time makespan;
    friend auto operator<=>(const Outcome&, const Outcome&) = default;
  };

  // Too large to look at every device's ways to take over what one device lacks.
  bool is_large() const {
    const std::size_t devices = costs_.cluster().num_devices();
    return devices > kFewDevices && units_.size() * devices > kFewPairs;
  }
  PlacedGraph placed_by(const Assignment& assignment, const Sequence& sequence) const;
  std::optional<Outcome> evaluate(const Assignment& assignment, const Sequence& sequence);
  std::optional<PlacedGraph> improve(Assignment assignment, const Sequence& sequence);
  std::vector<Assignment> neighbours(const Assignment& assignment, const Sequence& sequence) const;
  std::vector<Assignment> relieved(const Assignment& assignment, const Sequence& sequence) const;
  std::array<Sequence, 2> sequences() const;
  std::array<Assignment, 2> cuts(const Sequence& sequence) const;
  Assignment segments(const Sequence& sequence, const std::vector<DeviceId>& devices) const;
  Assignment largest_first() const;
  Assignment frugal(const Sequence& sequence) const;

  const CostModel& costs_;
  const Units& units_;
  FitOptions options_;
  Simulator simulator_;
  Trace trace_;  // of the last evaluate()
  std::int64_t work_left_;
};

}  // namespace baechi
