// SPDX-License-Identifier: Apache-2.0
// What a request may spend. All that a method does takes its share from here, as an amount of work,
// so that equal input gives an equal plan; processor time is the emergency brake. Beyond the paper.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>

#include "baechi/base/processor_time.h"
#include "baechi/graph/op_graph.h"
#include "baechi/plan/attempt/attempt.h"
#include "baechi/plan/planner.h"
#include "baechi/plan/search/refine.h"

namespace baechi {

// Parts of what fall-backs have left of a budget.
struct Share {
  static constexpr double kProof = 0.25;   // for a proof, before the search from the best plan
  static constexpr double kPeriods = 0.4;  // the search: of what repeats (else the others get it)
  static constexpr double kPartitions = 0.1;  // from further partitions,
  static constexpr double kPartitionsOfLarge = 0.2;
  static constexpr double kCuts = 0.05;        // from further cuts,
  static constexpr double kCutsOfLarge = 0.7;  // on large graphs from more of them,
  static constexpr double kElsewhere = 0.4;    // on small graphs from anywhere,
  static constexpr double kClusters = 0.8;     // by moves of clusters of operators,
  static constexpr double kClustersOfLarge = 0.05;
  static constexpr double kOperators = 0.05;  // by moves of operators
  static constexpr double kAsGiven = 0.3;     // and, behind it, in the order of the file
  static constexpr double kRest = 1;          // all of it
  static constexpr double kProbe = 1.0 / 16;  // of the whole: asking once whether something fits
};

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
  const std::int64_t work_at_first_;  // of fall-backs
  double seconds_;                    // that are shared out
  std::optional<ProcessorTimeLimit> brake_;
  std::atomic<bool> stopped_early_{false};
};

// What a budget in seconds leaves for finding any plan that fits, in simulated operators: all of
// it, and what two thousand replays take however small it is (at most two seconds' work).
std::int64_t work_for_fit(const OpGraph& graph, double seconds);
// So many, however few that is.
std::int64_t replays_in(double seconds);

}  // namespace baechi
