// SPDX-License-Identifier: Apache-2.0
// Whether the graph of a step with second runs is the right one, from the graph as given: with
// code of its own. Beyond the paper.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "baechi/graph/op_graph.h"
#include "baechi/graph/recomputation.h"

namespace baechi {

// One sentence per fault: an operator that may not run again, a second run that costs other than the
// first, a reader that reads of the wrong run, an output of a run that nobody is left to read and
// that is held all the same, one that nobody ever read and that is not held to the end of the step,
// anything else that is not as in `original`. Empty when `step` is right; its memory
// over time is then check_schedule()'s question.
std::vector<std::string> check_recomputation(const OpGraph& original, const OpGraph& step,
                                             std::span<const Recomputation> again);

}  // namespace baechi
