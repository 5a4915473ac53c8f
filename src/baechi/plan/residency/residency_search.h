// SPDX-License-Identifier: Apache-2.0
// Residencies for placements and orders that there are, compared on the replay. Beyond the paper.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "baechi/base/cancel.h"
#include "baechi/base/units.h"
#include "baechi/graph/residency.h"
#include "baechi/plan/residency/residency_choice.h"
#include "baechi/schedule/schedule.h"

namespace baechi {

struct FoundResidency {
  Residency residency;
  PlacedGraph placed;  // of with_fetches(step, residency)
  Time makespan;
  bool fits = false;
  Bytes over;        // what the fullest device lacks
  Bytes step_needs;  // what that one holds
  DeviceId fullest{0};
  Bytes store_needs;
  std::size_t start = 0;  // of those that were given

  // Fits rather than not, then the shorter.
  bool better_than(const FoundResidency& other) const;
};

enum class ResidencyEffort : std::uint8_t {
  kAll,  // nothing stays that may be away
  kFew,  // a few tries of every start
  kMany  // and most tries of the start that then looks best
};

// The shortest step of those that fit, else the one that lacks least.
std::optional<FoundResidency> find_residency(const ResidencyProblem& problem,
                                             const std::vector<ResidencyStart>& starts,
                                             ResidencyEffort effort, const CancelFlag* cancel);

}  // namespace baechi
