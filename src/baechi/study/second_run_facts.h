// SPDX-License-Identifier: Apache-2.0
// What each second run of a plan costs, and what it saves. Beyond the paper.
#pragma once

#include <vector>

#include "baechi/base/id.h"
#include "baechi/base/units.h"
#include "baechi/graph/op_graph.h"
#include "baechi/schedule/plan.h"

namespace baechi {

struct SecondRunFacts {
  OpId op{0}, run{0};  // the operator, and its second run
  DeviceId device{0};
  Time time;         // that it computes a second time
  Bytes bytes;       // made again
  Time from, until;  // in between the device does not hold them

  friend bool operator==(const SecondRunFacts&, const SecondRunFacts&) = default;
};

// Of every recomputed operator; what saves most, bytes times how long, comes first. Requires a plan of
// this graph, the one with its second runs. Nothing is told of steps of several micro-batches.
std::vector<SecondRunFacts> second_run_facts(const OpGraph& graph, const Plan& plan);

}  // namespace baechi
