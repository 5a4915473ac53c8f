// SPDX-License-Identifier: Apache-2.0
// Choices of second runs that spare more and more memory, as if on one device. Beyond the paper.
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "baechi/base/id.h"
#include "baechi/base/units.h"
#include "baechi/cost/cost_model.h"
#include "baechi/plan/recompute/forward_runs.h"
#include "baechi/plan/recompute/keep_or_recompute.h"
#include "baechi/plan/recompute/second_runs.h"

namespace baechi {

struct SparingChoice {  // of second runs
  IdVector<OpId, bool> again;
  std::optional<std::size_t> part = {};  // of what can be spared; nothing if that is not known
};

class SparingChoices {
 public:
  SparingChoices(const CostModel& costs, const SecondRuns& runs);

  // Those that take the least time and spare so much of what can be; nothing if it finds none.
  std::optional<IdVector<OpId, bool>> at(std::size_t part, std::size_t parts) const;
  // Whole regions, so that least memory is needed.
  IdVector<OpId, bool> all() const { return chosen(choice_.regions_within(choice_.least())); }

  // So many choices at most: all() is the last.
  std::vector<SparingChoice> from_few_to_all(std::size_t count) const;

 private:
  SparingChoices(const CostModel& costs, DeviceRuns device);
  IdVector<OpId, bool> chosen(const std::vector<bool>& again) const;

  IdVector<OpId, bool> none_;
  std::vector<OpId> ops_;  // of the runs
  Bytes whole_;
  KeepOrRecompute choice_;
};

}  // namespace baechi
