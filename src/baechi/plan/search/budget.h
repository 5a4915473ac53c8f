// SPDX-License-Identifier: Apache-2.0
// What a request may spend. All that a method does takes its share from here, as an amount of work,
// so that equal input gives an equal plan; processor time is the emergency brake. Beyond the paper.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>

#include "baechi/base/processor_time.h"
#include "baechi/cost/cost_model.h"
#include "baechi/graph/op_graph.h"
#include "baechi/place/placer.h"
#include "baechi/plan/fit/any_fit.h"
#include "baechi/plan/request/request.h"
#include "baechi/plan/search/refine.h"

namespace baechi {

// About what a placer and the Graph Optimizer take, what all placers may take beside a search, and at
// most with a part of it, in simulated operators.
std::int64_t work_of(const PlacerEntry& placer, const CostModel& costs);
std::int64_t work_of_optimizer(const CostModel& costs);
std::int64_t work_of_methods(const OpGraph& graph);
std::int64_t most_work_of_methods(const PlanRequest& request, const OpGraph& graph);

class Budget {
 public:
  // Both are looked at until the end: fall-backs spend from the same budget.
  Budget(const PlanRequest& request, const LastResort& fallbacks);
  // As another one that shares out so many seconds; it tells of its own stops alone.
  Budget(const Budget& other, double seconds);

  // A share in operators that the simulator replays, or that the exact search looks at. Half of the
  // budget is shared out whatever fall-backs have used up.
  std::int64_t replays(double share) const;
  std::int64_t looks(double share) const;
  RefineOptions refinement(double share) const;
  double seconds(double share) const;  // as PlanRequest's budget

  double all_seconds() const { return seconds_; }  // whatever fall-backs have used up
  // From now on shares are of so many seconds, what fall-backs have used up taken off.
  void divide(double seconds) { seconds_ = seconds; }

  // From now on a search is over after five times the processor time that it should take, and
  // twenty seconds of it.
  void start_clock();
  bool is_over();  // by that or by the user; may be asked from all threads

  void note_stop(bool stopped = true) { stopped_early_ = stopped_early_ || stopped; }
  bool stopped_early() const { return stopped_early_; }

 private:
  double seconds_left() const;

  const PlanRequest& request_;
  const LastResort& fallbacks_;
  double seconds_;  // that are shared out
  std::optional<ProcessorTimeLimit> brake_;
  std::atomic<bool> stopped_early_{false};
};

}  // namespace baechi
