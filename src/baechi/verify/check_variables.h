// SPDX-License-Identifier: Apache-2.0
// Variables in a timed plan, and the order that those which micro-batches change, and random numbers,
// ask for: with code of its own. Beyond the paper.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "baechi/graph/op_graph.h"
#include "baechi/graph/unroll.h"
#include "baechi/schedule/schedule.h"
#include "baechi/verify/sentences.h"

namespace baechi {

// Tells `report` of every variable that is not there from the start of the step on.
void check_variables(const OpGraph& graph, const Schedule& schedule, const Sentences& say,
                     const std::function<void(const std::string&)>& report);

// One sentence per fault: a variable that micro-batches change and a reader or writer of it on
// different devices; a copy that reads it after the writer of its own micro-batch has begun, or
// before that of the one before has finished; copies of who draws random numbers out of turn. Knows
// the step's copies by their micro-batch and not by their edges. Requires a schedule with a slot for
// every operator.
std::vector<std::string> check_carried(const StepGraph& step, const Cluster& cluster,
                                       const Schedule& schedule);

}  // namespace baechi
