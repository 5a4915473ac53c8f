// SPDX-License-Identifier: Apache-2.0
// What a request may spend, and how it is shared out. Beyond the paper.
#pragma once

#include <cstdint>

namespace baechi {

// An amount of work that is counted, not a clock, so that equal input gives an equal plan: about as
// much as one core of a current machine does in so many seconds.
struct Budget {
  static constexpr double kReplaysPerSecond = 5e6, kLooksPerSecond = 15e6, kRefinesPerSecond = 15e6;

  double seconds = 1;

  constexpr Budget(double amount = 1) : seconds(amount) {}  // NOLINT(google-explicit-constructor)
  static constexpr Budget of_replays(double operators) { return operators / kReplaysPerSecond; }
  static constexpr Budget of_refines(double units) { return units / kRefinesPerSecond; }

  constexpr bool none() const { return seconds == 0; }
  // Operators that the simulator replays, moments that the exact search looks at, and units of the
  // local search's work.
  std::int64_t replays() const { return static_cast<std::int64_t>(seconds * kReplaysPerSecond); }
  std::int64_t looks() const { return static_cast<std::int64_t>(seconds * kLooksPerSecond); }
  std::int64_t refines() const { return static_cast<std::int64_t>(seconds * kRefinesPerSecond); }

  constexpr Budget part(double share) const { return seconds * share; }
  // Takes off what was spent of it.
  constexpr void spend(Budget other) { seconds -= other.seconds; }
};

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
  static constexpr double kTidy = 0.05;       // beside them: making a plan of fewer pieces
  static constexpr double kRest = 1;          // all of it
  static constexpr double kMethods = 0.4;     // of the whole: methods, beside what they have anyway
  static constexpr double kCare = 0.5;        // of the whole: where something fits, further tries,
  static constexpr double kRepairs = 0.15;    // and repairs of what lacks memory,
  static constexpr double kAdvice = 0.5;      // of the whole: looking for what would fit,
  static constexpr double kAdviceAtOnce = 1;  // where no plan was looked for,
  static constexpr double kOtherClusters = 0.7;  // of that, for steps of micro-batches,
  static constexpr double kProbe = 1.0 / 16;     // of that: asking once whether something fits
};

}  // namespace baechi
