// SPDX-License-Identifier: Apache-2.0
// What a search has of its request's budget; processor time is the emergency brake. Beyond the paper.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>

#include "baechi/base/processor_time.h"
#include "baechi/cost/cost_model.h"
#include "baechi/graph/op_graph.h"
#include "baechi/place/placer.h"
#include "baechi/plan/fit/any_fit.h"
#include "baechi/plan/request/budget.h"
#include "baechi/plan/request/request.h"
#include "baechi/plan/search/refine.h"

namespace baechi {

// About what the Graph Optimizer takes, what all placers may take beside a search, and at
// most with a part of it, in simulated operators.
std::int64_t work_of_optimizer(const CostModel& costs);
std::int64_t work_of_methods(const OpGraph& graph);
std::int64_t most_work_of_methods(const PlanRequest& request, const OpGraph& graph);
// In which the optimizer begins another cut.
std::int64_t most_work_of_cut(const PlanRequest& request, const OpGraph& graph);

class Spending {
 public:
  // Both are looked at until the end: fall-backs spend from the same budget.
  Spending(const PlanRequest& request, const LastResort& fallbacks);
  // As another one that shares out a part of it; it tells of its own stops alone.
  Spending(const Spending& other, Budget part);

  // What fall-backs have left of the whole: half of it whatever they have used up.
  Budget left() const;
  RefineOptions refinement(double share) const;  // of that

  // From now on there is so much, of which what fall-backs have used up is taken off.
  void divide(Budget all) { all_ = all; }

  // From now on a search is over after five times the processor time that it should take, and
  // twenty seconds of it.
  void start_clock();
  bool is_over();  // by that or by the user; may be asked from all threads

  void note_stop(bool stopped = true) { stopped_early_ = stopped_early_ || stopped; }
  bool stopped_early() const { return stopped_early_; }

 private:
  const PlanRequest& request_;
  const LastResort* const fallbacks_;  // absent: a part
  Budget all_;
  std::optional<ProcessorTimeLimit> brake_;
  std::atomic<bool> stopped_early_{false};
};

}  // namespace baechi
