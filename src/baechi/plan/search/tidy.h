// SPDX-License-Identifier: Apache-2.0
// The last pass of a search: a plan in fewer pieces, for little or nothing. Beyond the paper.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "baechi/base/cancel.h"
#include "baechi/base/units.h"
#include "baechi/plan/attempt/attempt.h"

namespace baechi {

struct TidyOptions {
  Time may_lose = {};     // of the step, in all
  std::int64_t work = 0;  // at most, in the local search's units
  const CancelFlag* cancel = nullptr;
};

struct Tidied {
  Attempt attempt;
  std::size_t islands = 0, ops = 0;  // that moved
};

// An island is a connected set of operators on one device, with the rest of their colocation groups,
// whose neighbours are on other devices and which takes a thousandth of the step at most. It goes
// to the device of a neighbour where that takes a device or a transfer less, no transfer more, and
// the step a thousandth longer at the most: first those that make the step no longer than that of
// `start`, then a little longer, then the others, as long as `may_lose` lasts.
//
// Nothing where none moves. Requires a start with a placement.
std::optional<Tidied> tidy(const Problem& problem, const Attempt& start,
                           const TidyOptions& options);

}  // namespace baechi
