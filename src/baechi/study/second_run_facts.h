// SPDX-License-Identifier: Apache-2.0
// What each second run of a plan costs, and what it saves. Beyond the paper.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "baechi/base/id.h"
#include "baechi/base/units.h"
#include "baechi/graph/unroll.h"
#include "baechi/schedule/plan.h"

namespace baechi {

struct SecondRunFacts {
  struct Gap {
    Time from, until;
    friend bool operator==(const Gap&, const Gap&) = default;
  };

  OpId op{0}, run{0};  // the operator, and its second run; the copies for micro-batch 0
  std::string name;    // of the operator in the graph of one micro-batch
  DeviceId device{0};
  Time time;                // that it computes a second time, in each micro-batch
  Bytes bytes;              // made again, of each micro-batch
  std::vector<Gap> gaps;    // by micro-batch: in between the device does not hold them
  std::size_t at_once = 0;  // so many micro-batches' at most it does not hold at the same time

  Time dropped() const;  // all gaps together

  friend bool operator==(const SecondRunFacts&, const SecondRunFacts&) = default;
};

// Of every recomputed operator; what saves most, bytes times how long, comes first. Requires a plan of
// this step, the one with its second runs.
std::vector<SecondRunFacts> second_run_facts(const StepGraph& step, const Plan& plan);

}  // namespace baechi
