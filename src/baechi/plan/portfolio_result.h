// SPDX-License-Identifier: Apache-2.0
// What methods that run other methods bring back.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "baechi/optimize/optimize.h"
#include "baechi/plan/attempt/attempt.h"
#include "baechi/schedule/plan.h"

namespace baechi {

// Of plans whose search did not come to its end.
inline constexpr const char* kSearchStopped =
    "the search ran out of processor time or was stopped by you: another run may find another plan";

struct PortfolioResult {
  std::vector<Attempt> attempts;       // in the order they were made; at least one
  std::vector<PassStatistics> passes;  // of the Graph Optimizer
  std::vector<std::string> notes;
  std::optional<NamedBound> bound;  // that a search over all plans has reached
};

}  // namespace baechi
